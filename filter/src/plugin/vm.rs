//! The VM: what its plugin configurations have in common.

use super::Plugin;
use crate::blocks;
use crate::config::{self, Settings, TokenizerSettings};
use crate::fleet::Fleet;
use crate::host::Host;
use crate::index::IndexSettings;
use crate::metrics::Metrics;
use crate::pipeline::Rng;
use crate::pods::Scout;
use crate::prompt::delivery::{Delivery, Source, built_in};
use crate::request;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use xxhash_rust::xxh3::xxh3_64;

/// Blocks that a pod is thought to hold where nobody says how many.
const POD_BLOCKS: u32 = 32_768;

/// The VM: its fleets by fingerprint, and its tokenizers by where they come from.
#[derive(Default)]
pub struct Vm {
    fleets: BTreeMap<u64, Weak<RefCell<Fleet>>>,
    /// By what the source is called, which says all but how long it may take.
    deliveries: BTreeMap<String, Weak<RefCell<Delivery>>>,
    /// By the configuration's digest.
    scouts: BTreeMap<u64, Weak<RefCell<Scout>>>,
}

impl Vm {
    /// Builds a plugin from its configuration, or says every mistake in it.
    pub fn configure(&mut self, host: &impl Host, id: u32) -> Result<Rc<Plugin>, String> {
        let bytes = host.plugin_configuration().map_err(|error| error.to_string())?;
        let router = config::load(&bytes).map_err(|mistakes| mistakes.to_string())?;
        for (i, tokenizer) in router.settings().tokenizers.iter().enumerate() {
            if let Source::BuiltIn(name) = &tokenizer.source {
                built_in::find(name)
                    .map_err(|error| format!("tokenizers[{i}].built_in: {name:?} is {error}"))?;
            }
        }
        let settings = index_settings(router.settings());
        let scout = self.scout(&bytes, router.settings());
        self.fleets.retain(|_, fleet| fleet.strong_count() > 0);
        let identity = settings.identity();
        let fleet = self.fleets.get(&identity).and_then(Weak::upgrade).unwrap_or_else(|| {
            let settings =
                IndexSettings { secret: Rng::new(host.now().as_nanos() as u64).bits(), ..settings };
            let fleet = Rc::new(RefCell::new(Fleet::new(settings, Metrics::define(host))));
            self.fleets.insert(identity, Rc::downgrade(&fleet));
            fleet
        });
        self.deliveries.retain(|_, delivery| delivery.strong_count() > 0);
        let tokenizers =
            router.settings().tokenizers.iter().map(|settings| self.delivery(settings)).collect();
        Ok(Rc::new(Plugin::new(id, bytes, router, fleet, tokenizers, scout)))
    }

    /// Who asks for configurations of these bytes, if they want that.
    fn scout(&mut self, json: &[u8], settings: &Settings) -> Option<Rc<RefCell<Scout>>> {
        if settings.discovery.is_none() && settings.metrics.is_none() {
            return None;
        }
        self.scouts.retain(|_, scout| scout.strong_count() > 0);
        let digest = xxh3_64(json);
        Some(self.scouts.get(&digest).and_then(Weak::upgrade).unwrap_or_else(|| {
            let scout = Rc::new(RefCell::new(Scout::new(digest, settings)));
            self.scouts.insert(digest, Rc::downgrade(&scout));
            scout
        }))
    }

    fn delivery(&mut self, settings: &TokenizerSettings) -> Rc<RefCell<Delivery>> {
        let source = settings.source.to_string();
        self.deliveries.get(&source).and_then(Weak::upgrade).unwrap_or_else(|| {
            let delivery = Delivery::new(settings.source.clone(), settings.memory_bytes);
            let delivery = Rc::new(RefCell::new(delivery));
            self.deliveries.insert(source, Rc::downgrade(&delivery));
            delivery
        })
    }
}

/// The index that a configuration shares with all that hash alike.
pub(crate) fn index_settings(settings: &Settings) -> IndexSettings {
    IndexSettings {
        max_blocks: settings.max_blocks as usize,
        pod_blocks: settings.pod_blocks.unwrap_or(POD_BLOCKS) as usize,
        text_tokens: settings.block_size.tokens() as u64,
        block_tokens: settings.tokenizers.iter().map(|one| one.block_tokens as u64).min().unwrap_or(16),
        ttl_seconds: settings.ttl_seconds,
        fingerprint: blocks::seed(&[
            Some(&(settings.block_size.bytes() as u64).to_le_bytes()),
            Some(&u64::from(request::FORM_VERSION).to_le_bytes()),
        ]),
        ..IndexSettings::default()
    }
}
