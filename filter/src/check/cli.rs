//! The command line.

use super::{built_in, check, document};
use crate::VERSION;
use crate::reference::{page, schema};
use std::io::Write;

const USAGE: &str = "\
usage: warmpath check FILE    check a plugin configuration, an Envoy configuration (also one that Envoy's admin dumped),
                              or the plugin configurations in Kubernetes manifests (JSON or YAML)
       warmpath schema        print what a plugin configuration may say, for editors (JSON Schema)
       warmpath reference     print the same for people (Markdown)
       warmpath built-in OUT DIR...
                              write what a module includes of the tokenizers in these folders (for wasm-build.sh)
       warmpath --version     print the version

check exits with 0 if the file is right (warnings don't count), 1 if it holds mistakes, 2 if it can't be read.
";

/// Runs `args` (without the program's name); what is asked for goes to `out`, complaints to `err`. Returns the exit code.
pub fn run(args: &[String], out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    // A reader who closes the pipe has seen enough: what can't be written is dropped.
    match args.as_slice() {
        ["check", file] => {
            let document = match std::fs::read_to_string(file) {
                Ok(text) => document::parse(&text),
                Err(error) => Err(error.to_string()),
            };
            let report = match document {
                Ok(document) => check(&document),
                Err(error) => {
                    let _ = writeln!(err, "{file}: {error}");
                    return 2;
                }
            };
            let _ = write!(out, "{report}");
            if report.mistakes.is_empty() {
                let _ = writeln!(out, "{file}: right, {} warnings", report.warnings.len());
                return 0;
            }
            1
        }
        ["schema"] => {
            let _ = writeln!(out, "{:#}", schema());
            0
        }
        ["reference"] => {
            let _ = write!(out, "{}", page());
            0
        }
        ["built-in", out, folders @ ..] if !folders.is_empty() => {
            match built_in::write(std::path::Path::new(out), folders) {
                Ok(()) => 0,
                Err(error) => {
                    let _ = writeln!(err, "{error}");
                    1
                }
            }
        }
        ["--version"] => {
            let _ = writeln!(out, "warmpath {VERSION}");
            0
        }
        ["help" | "--help" | "-h"] => {
            let _ = write!(out, "{USAGE}");
            0
        }
        _ => {
            let _ = write!(err, "{USAGE}");
            2
        }
    }
}
