// Starts `lipcompile lsp` and hands it every .lip file. All that is known of the language is known there.
const vscode = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

exports.activate = async () => {
  const [command, ...args] = vscode.workspace.getConfiguration("lipcompile").get("command");
  const folder = vscode.workspace.workspaceFolders?.[0]?.uri.fsPath;
  client = new LanguageClient(
    "lipcompile",
    "lipcompile",
    { command, args, options: { cwd: folder } }, // without `transport` the client talks over stdio
    { documentSelector: [{ scheme: "file", language: "lip" }] },
  );
  try {
    await client.start();
  } catch (error) {
    const help = "pip install 'lipcompile[editor]', or set lipcompile.command to where it is installed";
    const cause = error?.message ?? error ?? `${command} cannot be run`;
    vscode.window.showErrorMessage(`lipcompile: the language server did not start (${cause}). ${help}`);
    client = undefined;
  }
};

exports.deactivate = () => client?.stop();
