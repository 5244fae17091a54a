// Starts `lipcompile lsp` and hands it every .lip file. All that is known of the language is known there.
const vscode = require("vscode");
const { LanguageClient, TransportKind } = require("vscode-languageclient/node");

let client;

exports.activate = async () => {
  const [command, ...args] = vscode.workspace.getConfiguration("lipcompile").get("command");
  const server = { command, args, transport: TransportKind.stdio };
  const folder = vscode.workspace.workspaceFolders?.[0]?.uri.fsPath;
  client = new LanguageClient(
    "lipcompile",
    "lipcompile",
    { ...server, options: { cwd: folder } },
    { documentSelector: [{ scheme: "file", language: "lip" }] },
  );
  try {
    await client.start();
  } catch (error) {
    const help = "pip install 'lipcompile[editor]', or set lipcompile.command to where it is installed";
    vscode.window.showErrorMessage(`lipcompile: the language server did not start (${error.message}). ${help}`);
  }
};

exports.deactivate = () => client?.stop();
