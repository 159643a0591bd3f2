// Checks Kubernetes manifests against the schemas of their kinds. Unknown fields are refused, which the API server
// would drop in silence or with a warning.
import fs from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { parseAllDocuments } from "yaml";
import { definitions } from "./definitions.mjs";
import { models } from "./models.mjs";

const USAGE = `usage: check.mjs [--crds PATH]… [--allow-unchecked KIND]… FILE…
  --crds PATH             CustomResourceDefinitions, a YAML file or a folder of them; they go before the packages' schemas
  --allow-unchecked KIND  a kind without a schema is no failure`;

// What stands in a file, or what keeps it from being read.
function read(file) {
  return parseAllDocuments(fs.readFileSync(file, "utf8"))
    .filter((document) => document.contents !== null || document.errors.length)
    .map((document) => ({
      file,
      value: document.errors.length ? null : document.toJS(),
      mistakes: document.errors.map((error) => error.message.split("\n")[0]),
    }));
}

function describe({ value }) {
  return value ? `${value.kind} ${value.metadata?.name ?? "without a name"}` : "unreadable";
}

// What the API server wants of every object, whatever its schema says.
function common({ apiVersion, kind, metadata }) {
  const isName = /^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$/;
  const mistakes = [];
  if (typeof apiVersion !== "string" || typeof kind !== "string") mistakes.push("apiVersion and kind: must be strings");
  if (!isName.test(metadata?.name ?? "")) mistakes.push("metadata.name: must be a name in lower case");
  return mistakes;
}

/** Checks files; returns a line for each document and how many were refused or had no schema. */
export async function check(files, { crds = [], allowed = [] } = {}) {
  const documents = files.flatMap(read);
  const readable = documents.filter(({ value }) => value?.apiVersion && value?.kind);
  const schemas = [definitions(crds), await models(readable.map(({ value }) => value))];
  const report = { lines: [], checked: 0, refused: 0, unchecked: 0 };
  for (const document of documents) {
    const { file, value, mistakes } = document;
    const schema = value && schemas.map((find) => find(value)).find((found) => found);
    if (value) mistakes.push(...common(value), ...(schema?.mistakes() ?? []));
    const name = `${file}: ${describe(document)}`;
    if (mistakes.length) {
      report.refused += 1;
      report.lines.push(...[...new Set(mistakes)].map((mistake) => `${name}: ${mistake}`));
    } else if (schema) {
      report.checked += 1;
      report.lines.push(`${name}: fine, by ${schema.source}`);
    } else {
      const isAllowed = allowed.includes(value.kind);
      report[isAllowed ? "unchecked" : "refused"] += 1;
      const cure = isAllowed ? "" : "; give its definition by --crds, or allow that by --allow-unchecked";
      report.lines.push(`${name}: not checked, no schema of ${value.apiVersion} ${value.kind} is known${cure}`);
    }
  }
  return report;
}

async function main(args) {
  const options = { crds: [], allowed: [] };
  const files = [];
  for (let i = 0; i < args.length; i += 1) {
    const list = { "--crds": options.crds, "--allow-unchecked": options.allowed }[args[i]];
    if (list && args[i + 1]) list.push(args[(i += 1)]);
    else if (args[i].startsWith("-")) return fail(USAGE);
    else files.push(args[i]);
  }
  if (!files.length) return fail(USAGE);
  const { lines, checked, refused, unchecked } = await check(files, options);
  console.log(lines.join("\n"));
  console.log("Not looked at: rules in CEL, which only an API server runs, and what a schema leaves open, such as the value of a patch.");
  console.log(`${checked} fine, ${refused} refused, ${unchecked} not checked`);
  return refused ? 1 : 0;
}

function fail(text) {
  console.error(text);
  return 2;
}

if (path.resolve(process.argv[1] ?? "") === fileURLToPath(import.meta.url)) {
  process.exitCode = await main(process.argv.slice(2));
}
