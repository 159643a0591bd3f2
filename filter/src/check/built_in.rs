//! Tokenizers as a module includes them: `warmpath built-in`, for wasm-build.sh.

use crate::prompt::convert;
use crate::prompt::template::ChatTemplate;
use std::path::Path;

/// Writes the images of the tokenizers in `folders` into `out`, and there the list of them, `built_in.rs`, which
/// [`crate::prompt::delivery::built_in`] includes.
///
/// # Errors
/// Names the file and what is wrong with it.
pub fn write(out: &Path, folders: &[&str]) -> Result<(), String> {
    let out = std::path::absolute(out).map_err(|error| format!("{}: {error}", out.display()))?;
    std::fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    let mut list = String::from("&[\n");
    let mut names: Vec<&str> = Vec::new();
    for folder in folders.iter().map(Path::new) {
        let name = folder.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| format!("{}: the folder has no name to go by", folder.display()))?;
        if names.contains(&name) {
            return Err(format!(
                "{}: there is another folder of the name {name:?}; rename one",
                folder.display()
            ));
        }
        names.push(name);
        let read = |file: &str| {
            let path = folder.join(file);
            std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let say = |error: &dyn std::fmt::Display| format!("{}: {error}", folder.display());
        let image = convert(&read("tokenizer.json")?).map_err(|error| say(&error))?;
        // Not every model has one.
        let config = match folder.join("tokenizer_config.json").exists() {
            true => read("tokenizer_config.json")?,
            false => b"{}".to_vec(),
        };
        ChatTemplate::load(&config).map_err(|error| say(&error))?;
        let [image, config] = [("image", &image), ("json", &config)].map(|(kind, content)| {
            let path = out.join(format!("{name}.{kind}"));
            std::fs::write(&path, content)
                .map_err(|error| format!("{}: {error}", path.display()))
                .map(|()| path)
        });
        let (image, config) = (image?, config?);
        list += &format!(
            "BuiltIn {{ name: {name:?}, image: include_bytes!({image:?}), config: include_bytes!({config:?}) }},\n"
        );
    }
    list += "]\n";
    let path = out.join("built_in.rs");
    std::fs::write(&path, list).map_err(|error| format!("{}: {error}", path.display()))
}
