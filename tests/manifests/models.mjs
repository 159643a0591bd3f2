// Schemas in npm packages made from the sources of the projects: a compiled validator, which lets unknown fields pass, and
// TypeScript's declarations, which don't.
import fs from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import ts from "typescript";
import { explain } from "./definitions.mjs";

const HERE = path.dirname(fileURLToPath(import.meta.url));
const PACKAGES = Object.keys(JSON.parse(fs.readFileSync(path.join(HERE, "package.json"), "utf8")).dependencies).filter((name) =>
  name.includes("kubernetes-models"),
);
// "Object literal may only specify known properties", and the same with a guess at what was meant.
const UNKNOWN_FIELD = [2353, 2561];

/** A function that finds the schemas of these objects. All are type-checked at once, since starting that is the slow part. */
export async function models(objects) {
  const found = new Map();
  for (const object of objects) found.set(object, await model(object));
  const known = objects.filter((object) => found.get(object));
  const complaints = typeCheck(known.map((object) => ({ object, from: found.get(object).from })));
  return (object) => {
    const schema = found.get(object);
    if (!schema) return undefined;
    const { unknown, other } = complaints.get(object);
    const mistakes = () => {
      const certain = [...validate(schema.Model, object), ...unknown];
      return certain.length ? certain : other;
    };
    return { source: schema.source, mistakes };
  };
}

async function model({ apiVersion, kind }) {
  if (!/^([-.a-z0-9]+\/)?v[a-z0-9]+$/.test(apiVersion) || !/^[A-Za-z0-9]+$/.test(kind)) return undefined;
  for (const name of PACKAGES) {
    const from = `${name}/${apiVersion}/${kind}`;
    try {
      const Model = (await import(from))[kind];
      const { version } = JSON.parse(fs.readFileSync(path.join(HERE, "node_modules", name, "package.json"), "utf8"));
      if (Model) return { from, Model, source: `${name} ${version}` };
    } catch (error) {
      if (!["ERR_MODULE_NOT_FOUND", "ERR_PACKAGE_PATH_NOT_EXPORTED"].includes(error.code)) throw error;
    }
  }
  return undefined;
}

function validate(Model, object) {
  try {
    new Model(object).validate();
    return [];
  } catch (error) {
    if (!error.errors) throw error;
    return error.errors.map(explain);
  }
}

// Each object as a constant of its declared type, in a file that exists for the compiler alone.
function typeCheck(objects) {
  const texts = new Map(
    objects.map(({ object, from }, n) => {
      const text = `import type { I${object.kind} } from "${from}";\nexport const object: I${object.kind} = ${JSON.stringify(object)};\n`;
      return [path.join(HERE, `object-${n}.ts`), text];
    }),
  );
  const options = {
    strict: true,
    noEmit: true,
    skipLibCheck: true,
    types: [],
    module: ts.ModuleKind.ESNext,
    moduleResolution: ts.ModuleResolutionKind.Bundler,
  };
  const host = ts.createCompilerHost(options);
  const { fileExists, readFile, getSourceFile } = host;
  host.fileExists = (name) => texts.has(path.resolve(name)) || fileExists(name);
  host.readFile = (name) => texts.get(path.resolve(name)) ?? readFile(name);
  host.getSourceFile = (name, version, ...rest) => {
    const text = texts.get(path.resolve(name));
    return text === undefined ? getSourceFile(name, version, ...rest) : ts.createSourceFile(name, text, version, true);
  };
  const program = ts.createProgram([...texts.keys()], options, host);
  return new Map(
    objects.map(({ object }, n) => {
      const source = program.getSourceFile(path.join(HERE, `object-${n}.ts`));
      const all = [...program.getSyntacticDiagnostics(source), ...program.getSemanticDiagnostics(source)];
      const [unknown, other] = [true, false].map((wanted) =>
        all.filter(({ code }) => UNKNOWN_FIELD.includes(code) === wanted).map((diagnostic) => told(source, diagnostic)),
      );
      return [object, { unknown, other }];
    }),
  );
}

function told(source, { start, code, messageText }) {
  const at = fieldAt(source, start);
  const message = ts.flattenDiagnosticMessageText(messageText, " ").slice(0, 300);
  return `${at || "the object"}: ${UNKNOWN_FIELD.includes(code) ? "is no field of the schema" : message}`;
}

// The path of fields to a position in the text.
function fieldAt(node, position) {
  const inner = ts.forEachChild(node, (child) => (child.pos <= position && position < child.end ? child : undefined));
  if (!inner) return "";
  const rest = fieldAt(inner, position);
  let part = "";
  if (ts.isPropertyAssignment(inner)) part = `.${inner.name.text}`;
  else if (ts.isArrayLiteralExpression(node)) part = `[${node.elements.indexOf(inner)}]`;
  const whole = part + rest;
  return ts.isSourceFile(node) ? whole.replace(/^\./, "") : whole;
}
