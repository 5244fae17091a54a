// Starts `lipcompile lsp` and hands it every .lip file. All that is known of the language is known there.
const vscode = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

// While the server starts, one message of ours tells the cause and the fix, and the client's own stay in its log.
class Client extends LanguageClient {
  starting = true;
  error(message, data, show) {
    super.error(message, data, this.starting ? false : show);
  }
}

let client;
let log; // one channel, kept when the client of a server that did not start is gone
let turn = Promise.resolve(); // starts and stops wait for one another

async function start() {
  const [command, ...args] = vscode.workspace.getConfiguration("lipcompile").get("command");
  const cwd = vscode.workspace.workspaceFolders?.[0]?.uri.fsPath;
  const documentSelector = ["file", "untitled"].map((scheme) => ({ scheme, language: "lip" }));
  client = new Client(
    "lipcompile",
    "lipcompile",
    { command, args, options: { cwd } }, // without `transport` the client talks over stdio
    { documentSelector, outputChannel: log, initializationFailedHandler: () => false },
  );
  try {
    await client.start();
    client.starting = false;
  } catch (error) {
    client = undefined;
    const shown = [command, ...args].join(" ");
    const cause = /ENOENT/.test(error) ? `there is no program "${command}"` : `"${shown}" ended with an error`;
    const help = "Install it with: pip install 'lipcompile[editor]'. Or set lipcompile.command to its path.";
    const choice = vscode.window.showErrorMessage(
      `The lipcompile language server did not start: ${cause}. ${help}`,
      "Open Settings",
      "Show Log",
    );
    choice.then((chosen) => {
      if (chosen === "Open Settings") {
        vscode.commands.executeCommand("workbench.action.openSettings", "lipcompile.command");
      } else if (chosen === "Show Log") {
        log.show();
      }
    });
  }
}

async function stop() {
  const running = client;
  client = undefined;
  try {
    await running?.dispose();
  } catch {
    // The server has ended already.
  }
}

const restart = () => (turn = turn.then(stop).then(start));

exports.activate = (context) => {
  log = vscode.window.createOutputChannel("lipcompile");
  context.subscriptions.push(
    log,
    vscode.commands.registerCommand("lipcompile.restart", restart),
    vscode.workspace.onDidChangeConfiguration((change) => {
      if (change.affectsConfiguration("lipcompile.command")) restart();
    }),
  );
  return restart();
};

exports.deactivate = () => (turn = turn.then(stop));
