//! Chat templates: messages to the text that the engine tokenizes.
//!
//! A template is rendered as `apply_chat_template` of Hugging Face's transformers renders it, with minijinja in the place of
//! Jinja2. Where the two would differ and we know of it, rendering fails, and the prompt is compared as text.

mod clock;
mod python;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, context};
use serde::Deserialize;
use serde_json::{Map, Value as Json};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Instructions that rendering may take: a template that loops for ever ends.
const FUEL: u64 = 4_000_000;
/// What marks the end of a message that is to be continued. No text holds it.
const CONTINUE: &str = "\u{fdd0}CONTINUE_FINAL_MESSAGE\u{fdd1}";
/// The template that chats with tools use where there is one of that name.
const TOOL_USE: &str = "tool_use";
const DEFAULT: &str = "default";

/// Why a template cannot be used, or didn't render.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateError(String);

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TemplateError {}

impl From<Error> for TemplateError {
    fn from(error: Error) -> Self {
        Self(match error.line() {
            Some(line) => format!("{error} (line {line} of the chat template)"),
            None => error.to_string(),
        })
    }
}

/// What of tokenizer_config.json matters.
#[derive(Deserialize)]
struct Config {
    chat_template: Option<Templates>,
    #[serde(flatten)]
    rest: BTreeMap<String, Json>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<Named>),
}

#[derive(Deserialize)]
struct Named {
    name: String,
    template: String,
}

/// The chat templates of one model.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// `bos_token` and the like, which templates may name.
    special: BTreeMap<String, String>,
    takes_parts: bool,
}

/// A chat that is to be rendered.
#[derive(Debug, Default)]
pub struct Chat {
    /// Messages, each an object, in the form that the engine gives them to the template.
    pub messages: Vec<Json>,
    /// Tools, each an object.
    pub tools: Option<Vec<Json>>,
    /// Whatever else the request gives the template.
    pub kwargs: Map<String, Json>,
    /// Whether the answer is to begin a message of its own.
    pub add_generation_prompt: bool,
    /// Whether the answer continues the last message.
    pub continue_final_message: bool,
    /// Since the epoch.
    pub now: Duration,
}

impl ChatTemplate {
    /// The templates of a tokenizer_config.json; `None` where it has none.
    ///
    /// # Errors
    /// Where the file is malformed, or a template is no Jinja that we know.
    pub fn load(config: &[u8]) -> Result<Option<Self>, TemplateError> {
        let config: Config = serde_json::from_slice(config)
            .map_err(|error| TemplateError(format!("tokenizer_config.json cannot be read: {error}")))?;
        let named = match config.chat_template {
            None => return Ok(None),
            Some(Templates::One(template)) => vec![Named { name: DEFAULT.to_owned(), template }],
            Some(Templates::Named(named)) => named,
        };
        let mut environment = environment();
        // Engines look for a loop over a message's content. One over anything of that name is taken for it.
        let takes_parts = named.iter().any(|named| loops_over_content(&named.template));
        for Named { name, template } in named {
            environment.add_template_owned(name, without_generation_tags(&template))?;
        }
        let special = config.rest.into_iter().filter(|(name, _)| name.ends_with("_token"));
        let text = |token: Json| match token {
            Json::String(text) => Some(text),
            Json::Object(mut token) => match token.remove("content") {
                Some(Json::String(text)) => Some(text),
                _ => None,
            },
            _ => None,
        };
        let special = special.filter_map(|(name, token)| Some((name, text(token)?))).collect();
        Ok(Some(Self { environment, special, takes_parts }))
    }

    /// Whether content comes to the template as a list of parts, not as one text.
    pub fn takes_parts(&self) -> bool {
        self.takes_parts
    }

    /// Whether the template for chats with or without tools knows the role `developer`. As engines do, it is asked for the
    /// word.
    pub fn names_developer(&self, tools: bool) -> bool {
        let template = self.environment.get_template(self.name(tools));
        template.is_ok_and(|template| {
            ["\"developer\"", "'developer'"].iter().any(|word| template.source().contains(word))
        })
    }

    /// Which of the templates is for chats with or without tools.
    fn name(&self, tools: bool) -> &'static str {
        match tools && self.environment.get_template(TOOL_USE).is_ok() {
            true => TOOL_USE,
            false => DEFAULT,
        }
    }

    /// The text of a chat.
    ///
    /// # Errors
    /// What the template raises, and whatever can't be rendered as Jinja2 would.
    pub fn render(&self, mut chat: Chat) -> Result<String, TemplateError> {
        let name = self.name(chat.tools.is_some());
        let continued = match chat.continue_final_message {
            true => Some(mark(&mut chat.messages)?),
            false => None,
        };
        let mut given = chat.messages.iter().chain(chat.tools.iter().flatten()).chain(chat.kwargs.values());
        if let Some(number) = given.find_map(inexact) {
            return Err(TemplateError(format!("the number {number} may not be what was written")));
        }
        let mut values: BTreeMap<String, Value> =
            self.special.iter().map(|(name, token)| (name.clone(), Value::from(token.as_str()))).collect();
        values.extend(chat.kwargs.iter().map(|(name, value)| (name.clone(), Value::from(Serde(value)))));
        let now = chat.now;
        let strftime_now = Value::from_function(move |format: &str| clock::strftime(format, now));
        let template = self.environment.get_template(name)?;
        let mut text = template.render(context! {
            messages => Value::from(Serde(&chat.messages)),
            tools => Value::from(Serde(&chat.tools)),
            documents => (),
            add_generation_prompt => chat.add_generation_prompt,
            strftime_now,
            ..Value::from_pairs(values)
        })?;
        if let Some(continued) = continued {
            // transformers refuses a template that took something out of the message.
            let at = text.rfind(CONTINUE).filter(|_| text.contains(continued.trim_matches(python::is_space)));
            let at = at.ok_or_else(|| {
                TemplateError("the message to continue does not appear in the rendered chat".to_owned())
            })?;
            // Where the template trimmed the space behind the mark, it would have trimmed the message's end.
            let trimmed = !text.get(at + CONTINUE.len()..).is_some_and(|rest| rest.starts_with(' '));
            text.truncate(at);
            if trimmed {
                text.truncate(text.trim_end_matches(python::is_space).len());
            }
        }
        Ok(text)
    }
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        environment.set_syntax(syntax);
    }
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(python::method);
    environment.set_formatter(|out, _, value| python::text(value, out).map_err(|_| python::unsure()));
    environment.set_fuel(Some(FUEL));
    environment.add_filter("tojson", python::tojson);
    environment.add_filter("trim", python::trim);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment
}

fn loops_over_content(template: &str) -> bool {
    let tags = template.split("{%").skip(1).filter_map(|tag| tag.split("%}").next());
    tags.filter_map(|tag| tag.trim_matches(['-', '+', ' ', '\n', '\t']).strip_prefix("for ")).any(|tag| {
        let over = tag.split_once(" in ").map_or("", |(_, over)| over);
        let over = over.split(" if ").next().unwrap_or("").split('|').next().unwrap_or("").trim();
        over == "content"
            || over.ends_with(".content")
            || over.ends_with("['content']")
            || over.ends_with("[\"content\"]")
    })
}

/// `{% generation %}` only tells trainers which tokens a model made.
fn without_generation_tags(template: &str) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{%") {
        let Some((tag, behind)) = after.split_once("%}") else { break };
        let word = tag.trim_matches(|c: char| matches!(c, '-' | '+') || c.is_whitespace());
        let instead = match word {
            "generation" => "if true",
            "endgeneration" => "endif",
            word => word,
        };
        out.push_str(before);
        out.push_str("{%");
        match word == instead {
            true => out.push_str(tag),
            false => out.push_str(&tag.replacen(word, instead, 1)),
        }
        out.push_str("%}");
        rest = behind;
    }
    out.push_str(rest);
    out
}

/// Marks the end of the last message's text. Returns the text.
fn mark(messages: &mut [Json]) -> Result<String, TemplateError> {
    let content = messages.last_mut().and_then(|message| message.get_mut("content"));
    let text = match content {
        Some(Json::Array(parts)) => parts.iter_mut().rev().find_map(|part| part.get_mut("text")),
        content => content,
    };
    match text {
        Some(Json::String(text)) => {
            let unmarked = text.clone();
            text.push_str(CONTINUE);
            text.push(' ');
            Ok(unmarked)
        }
        _ => Err(TemplateError("the last message has no text to continue".to_owned())),
    }
}

/// An integer beyond what JSON numbers hold here: Python writes it in full.
fn inexact(value: &Json) -> Option<f64> {
    match value {
        Json::Number(number) => {
            let float = number.as_f64().filter(|_| number.is_f64())?;
            (float.fract() == 0.0 && float.abs() >= 9e18).then_some(float)
        }
        Json::Array(items) => items.iter().find_map(inexact),
        Json::Object(fields) => fields.values().find_map(inexact),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
