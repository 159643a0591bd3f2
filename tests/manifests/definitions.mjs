// Schemas of CustomResourceDefinitions.
import fs from "node:fs";
import path from "node:path";
import Ajv from "ajv";
import { parseAllDocuments } from "yaml";

/** A function that finds the schema of an object among the definitions in these files and folders. */
export function definitions(paths) {
  const found = new Map();
  for (const file of paths.flatMap(files)) {
    for (const document of parseAllDocuments(fs.readFileSync(file, "utf8"), { logLevel: "error" })) {
      if (document.get("kind") !== "CustomResourceDefinition") continue;
      const { group, names, versions } = document.toJS().spec;
      for (const { name, schema } of versions) {
        found.set(`${group}/${name} ${names.kind}`, { file, schema: schema.openAPIV3Schema });
      }
    }
  }
  return (object) => {
    const definition = found.get(`${object.apiVersion} ${object.kind}`);
    return definition && { source: definition.file, mistakes: () => validate(definition.schema, object) };
  };
}

function files(at) {
  if (fs.statSync(at).isFile()) return [at];
  const isYaml = (name) => /\.ya?ml$/.test(name);
  return fs.readdirSync(at, { recursive: true }).filter(isYaml).map((name) => path.join(at, name));
}

function validate(schema, object) {
  const envelope = { apiVersion: {}, kind: {}, metadata: {} };
  const whole = closed({ ...schema, properties: { ...schema.properties, ...envelope } });
  const ajv = new Ajv({ strict: false, allErrors: true, validateFormats: false, unicodeRegExp: false, logger: false });
  const accepts = ajv.compile(whole);
  accepts(object);
  return (accepts.errors ?? []).map(explain);
}

// The same schema, which takes no field that it doesn't list. In anyOf and its like a structural schema lists a part of
// the fields alone.
function closed(schema) {
  if (typeof schema !== "object" || schema === null) return schema;
  const { properties, items, additionalProperties } = schema;
  const copy = { ...schema };
  if (items) copy.items = closed(items);
  if (additionalProperties) copy.additionalProperties = closed(additionalProperties);
  if (properties) {
    copy.properties = Object.fromEntries(Object.entries(properties).map(([name, inner]) => [name, closed(inner)]));
    if (!schema["x-kubernetes-preserve-unknown-fields"] && additionalProperties === undefined) {
      copy.additionalProperties = false;
    }
  }
  return copy;
}

/** An error of ajv: where, and what must be. */
export function explain({ instancePath, message, params = {} }) {
  const at = instancePath.replace(/^\//, "").replaceAll(/\/(\d+)/g, "[$1]").replaceAll("/", ".").replaceAll("~1", "/");
  const named = params.additionalProperty ?? params.allowedValues?.join(", ");
  return `${at || "the object"}: ${message}${named ? ` (${named})` : ""}`;
}
