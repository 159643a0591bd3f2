// What is wrong is refused, for the right reason; what is right isn't.
import assert from "node:assert/strict";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import test from "node:test";
import { fileURLToPath } from "node:url";
import { parseAllDocuments, stringify } from "yaml";
import { check } from "./check.mjs";

const data = (name) => path.join(path.dirname(fileURLToPath(import.meta.url)), "data", name);

async function checkTexts(texts, options) {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "warmpath-manifests-"));
  try {
    const files = texts.map((text, n) => path.join(folder, `${n}.yaml`));
    files.forEach((file, n) => fs.writeFileSync(file, texts[n]));
    return await check(files, options);
  } finally {
    fs.rmSync(folder, { recursive: true });
  }
}

test("each wrong manifest is refused for what is wrong in it", async () => {
  const objects = parseAllDocuments(fs.readFileSync(data("wrong.yaml"), "utf8")).map((document) => document.toJS());
  const { lines, refused, checked } = await check([data("wrong.yaml")]);
  assert.deepEqual([refused, checked], [9, 0], lines.join("\n"));
  for (const { kind, metadata } of objects) {
    const about = lines.filter((line) => line.includes(`: ${kind} ${metadata.name ?? "without a name"}: `));
    assert.ok(about.some((line) => line.includes(metadata.annotations.refused)), about.join("\n"));
  }
});

test("a file that is no YAML, or says a field twice, is refused", async () => {
  const { lines, refused } = await checkTexts(["kind: [", "kind: a\nkind: b\n"]);
  assert.equal(refused, 2, lines.join("\n"));
});

test("a kind without a schema is no failure where that is allowed", async () => {
  const widget = "apiVersion: example.org/v1\nkind: Widget\nmetadata: {name: a}\n";
  const { refused, unchecked } = await checkTexts([widget], { allowed: ["Widget"] });
  assert.deepEqual({ refused, unchecked }, { refused: 0, unchecked: 1 });
});

test("definitions are strict where Kubernetes is, and open where they say so", async () => {
  const widget = (spec) => stringify({ apiVersion: "example.org/v1", kind: "Widget", metadata: { name: "a", labels: { a: "b" } }, spec });
  const crds = [data("definition.yaml")];
  const right = [
    { size: 1, color: "red", anything: { at: { all: [1] } }, labels: { any: "name" }, parts: [{ name: "a-b" }] },
    { size: "10%", shade: null },
  ];
  const fine = await checkTexts(right.map(widget), { crds });
  assert.deepEqual([fine.checked, fine.refused], [2, 0], fine.lines.join("\n"));
  const wrong = [
    [{ size: 1, color: "red", colour: "red" }, "spec: must NOT have additional properties (colour)"],
    [{ size: 1, color: "blue" }, "spec.color: must be equal to one of the allowed values (red, green)"],
    [{ size: true, color: "red" }, "spec.size: must be integer"],
    [{ color: "red" }, "spec: must have required property 'size'"],
    [{ size: 1, color: "red", shade: "dark" }, "spec: must match exactly one schema in oneOf"],
    [{ size: 1, color: "red", labels: { a: 1 } }, "spec.labels.a: must be string"],
    [{ size: 1, color: "red", parts: [{ name: "A" }] }, "spec.parts[0].name: must match pattern"],
    [{ size: 1, color: "red", parts: [{ nam: "a" }] }, "spec.parts[0]: must NOT have additional properties (nam)"],
  ];
  for (const [spec, reason] of wrong) {
    const { lines } = await checkTexts([widget(spec)], { crds });
    assert.ok(lines.some((line) => line.includes(reason)), `${reason}\n${lines.join("\n")}`);
  }
});
