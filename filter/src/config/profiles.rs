//! Profiles and the rules that select them.

use super::mistake::Mistakes;
use super::raw::{RawConfig, RawProfile, RawSelect};
use super::select::{PathPattern, Rule, Target};
use super::settings::check_header;
use super::workflows;
use crate::blocks::BlockSize;
use crate::pipeline::{BUILT_IN, Profile, build as build_profile};
use crate::pods::Pod;

/// Longest name of a profile.
const MAX_NAME: usize = 64;
/// Most profiles of a user's own.
pub(super) const MAX_PROFILES: usize = 32;
/// Most rules of `select`.
pub(super) const MAX_RULES: usize = 64;
/// The profile of whoever names none.
pub(super) const DEFAULT_PROFILE: &str = "prefix-aware";

/// The profiles that were asked for, each built once.
pub(super) struct Profiles<'a> {
    raw: &'a RawConfig,
    pods: &'a [Pod],
    block_size: BlockSize,
    names: Vec<String>,
    /// `None` where a mistake was reported.
    built: Vec<Option<Profile>>,
}

impl<'a> Profiles<'a> {
    /// Those that the user wrote, used or not: a wrong one is better found today.
    pub(super) fn own(
        raw: &'a RawConfig,
        pods: &'a [Pod],
        block_size: BlockSize,
        mistakes: &mut Mistakes,
    ) -> Self {
        let mut profiles = Self { raw, pods, block_size, names: Vec::new(), built: Vec::new() };
        let own = &raw.profiles;
        if own.len() > MAX_PROFILES {
            mistakes
                .add("profiles", format!("has {} profiles; at most {MAX_PROFILES} are allowed", own.len()));
        }
        for (name, profile) in own.iter().take(MAX_PROFILES) {
            let path = format!("profiles.{}", name.escape_debug());
            if !is_name(name) {
                mistakes.add(path, NAME_CURE);
            } else if BUILT_IN.iter().any(|built_in| built_in.name == name) {
                mistakes.add(path, "is the name of a built-in profile; give yours another");
            } else {
                profiles.add(name, profile, mistakes);
            }
        }
        profiles
    }

    fn add(&mut self, name: &str, raw: &RawProfile, mistakes: &mut Mistakes) -> usize {
        self.names.push(name.to_owned());
        self.built.push(build_profile(
            name,
            raw,
            self.pods,
            self.raw.discovery.is_some(),
            self.block_size,
            mistakes,
        ));
        self.built.len().saturating_sub(1)
    }

    /// The pods that they choose among.
    pub(super) fn pods(&self) -> &[Pod] {
        self.pods
    }

    /// A profile that was built.
    pub(super) fn get(&self, position: usize) -> Option<&Profile> {
        self.built.get(position)?.as_ref()
    }

    /// What requests come to: a profile or a workflow, not both. `at` is where that is written.
    pub(super) fn target(
        &mut self,
        at: &str,
        profile: Option<&str>,
        workflow: Option<&str>,
        mistakes: &mut Mistakes,
    ) -> Option<Target> {
        let field = |name: &str| if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") };
        let name = match (profile, workflow) {
            (Some(_), Some(_)) => {
                mistakes.add(at, "names a profile and a workflow; remove one of the two");
                return None;
            }
            (None, Some(workflow)) => {
                let mut known = self.raw.workflows.iter().map(|(name, _)| name);
                if let Some(position) = known.position(|name| name == workflow) {
                    return Some(Target::Workflow(position));
                }
                let known: Vec<_> = self.raw.workflows.iter().map(|(name, _)| name).collect();
                let problem = format!(
                    "there is no workflow \"{}\" in `workflows`, which has {}",
                    workflow.escape_debug(),
                    if known.is_empty() { "none".to_owned() } else { known.join(", ") }
                );
                mistakes.add(field("workflow"), problem);
                return None;
            }
            (Some(profile), None) => profile,
            (None, None) => DEFAULT_PROFILE,
        };
        let position = self.find(&field("profile"), name, mistakes)?;
        if let Some(profile) = self.get(position) {
            workflows::refuse_peer(&field("profile"), profile, mistakes);
        }
        Some(Target::Profile(position))
    }

    /// The position of a profile, which is built now if it comes with Warmpath.
    pub(super) fn find(&mut self, path: &str, name: &str, mistakes: &mut Mistakes) -> Option<usize> {
        if let Some(at) = self.names.iter().position(|known| known == name) {
            return Some(at);
        }
        if self.raw.profiles.get(name).is_some() {
            return None; // Its own mistake was reported.
        }
        let Some(built_in) = BUILT_IN.iter().find(|built_in| built_in.name == name) else {
            let own = self.raw.profiles.iter().map(|(name, _)| name);
            let known: Vec<_> = BUILT_IN.iter().map(|built_in| built_in.name).chain(own).collect();
            let problem =
                format!("there is no profile \"{}\"; take one of {}", name.escape_debug(), known.join(", "));
            mistakes.add(path, problem);
            return None;
        };
        match serde_json::from_str(built_in.json) {
            Ok(raw) => Some(self.add(name, &raw, mistakes)),
            Err(error) => {
                mistakes.add(path, format!("the built-in profile can't be read: {error}"));
                None
            }
        }
    }

    /// Rules of `select`.
    pub(super) fn rules(&mut self, raw: &[RawSelect], mistakes: &mut Mistakes) -> Vec<Rule> {
        if raw.len() > MAX_RULES {
            mistakes.add("select", format!("has {} rules; at most {MAX_RULES} are allowed", raw.len()));
        }
        let rules = raw.iter().take(MAX_RULES).enumerate();
        rules.filter_map(|(i, rule)| self.rule(i, rule, mistakes)).collect()
    }

    /// Those that are built, by their numbers where there were no mistakes.
    pub(super) fn built(self) -> Vec<Profile> {
        self.built.into_iter().flatten().collect()
    }

    fn rule(&mut self, i: usize, raw: &RawSelect, mistakes: &mut Mistakes) -> Option<Rule> {
        let before = mistakes.count();
        let at = format!("select[{i}]");
        if raw.path.is_none() && raw.model.is_none() && raw.header.is_none() {
            mistakes
                .add(&at, "has no condition; add path, model or header, or name the profile in `profile`");
        }
        let path = raw.path.as_deref().map(PathPattern::parse).transpose();
        let path = path.unwrap_or_else(|problem| {
            mistakes.add(format!("{at}.path"), problem);
            None
        });
        if let Some(header) = &raw.header {
            check_header(&format!("{at}.header.name"), &header.name, mistakes);
        }
        if raw.profile.is_none() && raw.workflow.is_none() {
            mistakes.add(&at, "leads nowhere; add profile or workflow");
        }
        let target = self.target(&at, raw.profile.as_deref(), raw.workflow.as_deref(), mistakes);
        let header =
            raw.header.as_ref().map(|header| (header.name.to_ascii_lowercase(), header.value.clone()));
        (mistakes.count() == before).then_some(Rule {
            path,
            model: raw.model.clone(),
            header,
            target: target?,
        })
    }
}

/// The cure for another name.
pub(super) const NAME_CURE: &str = "name it with 1 to 64 letters, digits, - and _";

pub(super) fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
}
