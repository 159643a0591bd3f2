//! One plugin configuration in one VM: what its streams share.

use crate::blocks;
use crate::config::{self, Router, Settings, TokenizerSettings};
use crate::events::Complaints;
use crate::fleet::Fleet;
use crate::guard::Guard;
use crate::host::{Host, Level};
use crate::index::{IndexSettings, PodRef};
use crate::metrics::{Metric, Metrics};
use crate::pipeline::{PodState, Positions};
use crate::places::Places;
use crate::pods::metrics::Reading;
use crate::pods::{Board, Breaker, Engine, Overdue, Pod, Results, Scout, Speed, Verdict, Work, key};
use crate::prompt::delivery::{Delivery, Source, built_in};
use crate::request;
use crate::stream::Stream;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use xxhash_rust::xxh3::xxh3_64;

/// Blocks that a pod is thought to hold where nobody says how many.
const POD_BLOCKS: u32 = 32_768;
/// Ticks between looks at whether what engines said is stale.
const NOW_AND_THEN: u64 = 5;
/// Most connections that are closed with one tick.
const MOST_CLOSING: usize = 65_536;

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
        text_tokens: (settings.block_size.bytes() as u64 / 4).max(1),
        block_tokens: settings.tokenizers.iter().map(|one| one.block_tokens as u64).min().unwrap_or(16),
        ttl_seconds: settings.ttl_seconds,
        fingerprint: blocks::seed(&[
            Some(&(settings.block_size.bytes() as u64).to_le_bytes()),
            Some(&u64::from(request::FORM_VERSION).to_le_bytes()),
        ]),
        ..IndexSettings::default()
    }
}

/// One plugin configuration in one VM.
pub struct Plugin {
    id: u32,
    /// The configuration as it was given: pods that are found make another router of it.
    json: Vec<u8>,
    /// Everything of the configuration but pods and profiles.
    pub settings: Settings,
    /// What decided at first.
    first: Rc<Router>,
    current: RefCell<Current>,
    /// What this VM knows.
    pub fleet: Rc<RefCell<Fleet>>,
    /// Requests that are held, while it isn't sure that Envoy will give their bodies.
    pub guard: RefCell<Guard<Weak<RefCell<Stream>>>>,
    /// In the order of the configuration.
    tokenizers: Vec<Rc<RefCell<Delivery>>>,
    /// What asks the pods and Envoy's admin, where the configuration wants that.
    scout: Option<Rc<RefCell<Scout>>>,
    /// When what was complained of last about KV events.
    pub complaints: Complaints,
    /// Connections that are to be closed.
    closing: RefCell<Vec<u32>>,
    /// Failures of tokenizers as they were last added to Envoy's stats.
    failures: Cell<u64>,
}

/// The pods of now, and what is known of each: all by the positions of one router.
pub struct Current {
    /// Decides.
    pub router: Rc<Router>,
    /// Where the pods stand in the index.
    pub places: Places,
    /// Which failed lately.
    pub breaker: Breaker,
    /// What their engines said lately.
    pub engines: Vec<Option<Engine>>,
    /// Which tell how much of a prompt was in their cache.
    tells: Positions,
    /// Which Envoy holds to be down.
    pub down: Positions,
    /// By what the board knows them.
    keys: Vec<u64>,
    /// Version of the board that this was read from, and its news.
    board: u64,
    news: u64,
}

impl Plugin {
    fn new(
        id: u32,
        json: Vec<u8>,
        router: Router,
        fleet: Rc<RefCell<Fleet>>,
        tokenizers: Vec<Rc<RefCell<Delivery>>>,
        scout: Option<Rc<RefCell<Scout>>>,
    ) -> Self {
        let settings = router.settings().clone();
        let first = Rc::new(router);
        let router = first.clone();
        let current = Current {
            breaker: Breaker::new(settings.breaker, router.pods().len()),
            router,
            places: Places::default(),
            engines: Vec::new(),
            tells: Positions::default(),
            down: Positions::default(),
            keys: keys(&first),
            board: 0,
            news: 0,
        };
        let plugin = Self {
            id,
            json,
            settings,
            first,
            current: RefCell::new(current),
            fleet,
            guard: RefCell::default(),
            tokenizers,
            scout,
            complaints: Complaints::default(),
            closing: RefCell::default(),
            failures: Cell::new(0),
        };
        plugin.name_pods();
        plugin
    }

    fn name_pods(&self) {
        if let Ok(mut fleet) = self.fleet.try_borrow_mut() {
            fleet.name_pods(self.id, self.router().pods().iter().flat_map(Pod::cache_ids).collect());
        }
    }

    /// What decides now. Positions are those of its pods: keep it for as long as you keep one.
    pub fn router(&self) -> Rc<Router> {
        self.with_current(|current| current.router.clone()).unwrap_or_else(|| self.first.clone())
    }

    /// Looks at what is known of the pods; `None` while that is being changed, which nobody sees who isn't called by who changes
    /// it.
    pub fn with_current<T>(&self, look: impl FnOnce(&Current) -> T) -> Option<T> {
        self.current.try_borrow().ok().map(|current| look(&current))
    }

    /// What is to be done ten times a second.
    pub fn tick(&self, host: &impl Host) {
        self.look_around(host);
        let Ok(mut fleet) = self.fleet.try_borrow_mut() else { return };
        fleet.tick(host, self.id);
        self.deliver(host, &fleet);
        let now = fleet.ticks();
        self.overdue(host, &mut fleet);
        self.tell_breaker(host, &mut fleet);
        drop(fleet);
        self.send_on_overdue(host, now);
        self.close(host);
    }

    /// Closes a connection at the next tick. Not at once: Envoy would call into the VM, which is in a callback of that very
    /// connection.
    pub fn close_soon(&self, connection: u32) {
        if let Ok(mut closing) = self.closing.try_borrow_mut()
            && closing.len() < MOST_CLOSING
        {
            closing.push(connection);
        }
    }

    fn close(&self, host: &impl Host) {
        let closing = self.closing.try_borrow_mut().map(|mut closing| std::mem::take(&mut *closing));
        for connection in closing.unwrap_or_default() {
            if host.set_effective_context(connection).is_ok() {
                let _ = host.close_connection();
            }
        }
    }

    /// The pod of a name, an address, or a host that no other pod has.
    pub fn pod_named(&self, name: &str) -> Option<Pod> {
        let router = self.router();
        let pods = router.pods();
        let by_name = pods.iter().find(|pod| pod.name == name || pod.target == name);
        let found = by_name.or_else(|| {
            let host = |pod: &&Pod| pod.target.rsplit_once(':').is_some_and(|(host, _)| host == name);
            let mut of_host = pods.iter().filter(host);
            of_host.next().filter(|_| of_host.next().is_none())
        });
        found.cloned()
    }

    fn deliver(&self, host: &impl Host, fleet: &Fleet) {
        let Some(life) = fleet.index.life() else { return };
        let keeps_house = fleet.index.holds_lease();
        let (mut ready, mut failures) = (0, 0);
        for delivery in &self.tokenizers {
            let Ok(mut delivery) = delivery.try_borrow_mut() else { continue };
            // Nobody outside knows the moment at which it is loaded.
            let seed = (host.now().as_nanos() as u64) ^ life.rotate_left(32);
            delivery.tick(host, fleet.ticks(), keeps_house, seed);
            ready += u64::from(delivery.loaded().is_some());
            failures += delivery.failures();
        }
        let before = self.failures.replace(failures);
        fleet.metrics.add(host, Metric::TokenizerFailures, failures.saturating_sub(before));
        if keeps_house && !self.tokenizers.is_empty() {
            fleet.metrics.record(host, Metric::TokenizersReady, ready);
        }
    }

    /// An answer came to a call of this root context.
    pub fn on_answer(&self, host: &impl Host, call: u32) {
        let now = self.fleet.try_borrow().map_or(0, |fleet| fleet.ticks());
        if let Some(scout) = &self.scout
            && let (Ok(mut scout), Ok(mut fleet)) = (scout.try_borrow_mut(), self.fleet.try_borrow_mut())
            && scout.on_answer(host, &mut fleet, call)
        {
            return;
        }
        for delivery in &self.tokenizers {
            if delivery.try_borrow_mut().is_ok_and(|mut delivery| delivery.on_answer(host, now, call)) {
                return;
            }
        }
    }

    /// The tokenizer of a model. Engines of one model take requests that name none.
    pub fn tokenizer_of(&self, model: Option<&str>) -> Option<(&TokenizerSettings, &RefCell<Delivery>)> {
        let settings = &self.settings.tokenizers;
        let at = match model {
            Some(model) => settings.iter().position(|one| one.serves(model))?,
            None if settings.len() == 1 => 0,
            None => return None,
        };
        Some((settings.get(at)?, self.tokenizers.get(at)?))
    }

    fn send_on_overdue(&self, host: &impl Host, now: u64) {
        while let Some(stream) = self.guard.try_borrow_mut().ok().and_then(|mut guard| guard.overdue(now)) {
            let Some(stream) = stream.upgrade() else { continue };
            let sent = stream.try_borrow_mut().is_ok_and(|mut stream| stream.send_on_unread(host));
            if sent && self.guard.try_borrow_mut().is_ok_and(|mut guard| guard.sent_on()) {
                host.log(
                    Level::Error,
                    "warmpath: Envoy holds requests without giving their bodies. Set \
                     allow_on_headers_stop_iteration: true in the wasm filter's config (next to vm_config); until then \
                     requests go by load, unread.",
                );
            }
        }
    }

    /// Fills in what is known of each pod, by position, and returns how long first tokens take.
    pub fn states(&self, fleet: &Fleet, out: &mut Vec<PodState>) -> Speed {
        let Ok(mut current) = self.current.try_borrow_mut() else { return Speed::default() };
        let Current { router, places, breaker, down, .. } = &mut *current;
        places.update(router, &fleet.index);
        let now = fleet.ticks();
        let accounts: Vec<_> =
            (0..router.pods().len()).map(|position| places.account(&fleet.index, position)).collect();
        let speed = fleet.speed();
        out.clear();
        out.extend(router.pods().iter().zip(&accounts).enumerate().map(|(position, (pod, account))| {
            let Work { requests, waiting, prefill, context } = account.work;
            let most = pod.max_in_flight.or(self.settings.admission.max_in_flight_per_pod);
            // Who closed it again tells of it sooner than who opened it.
            let elsewhere = || places.slots_of(position).any(|pod| fleet.index.is_open_elsewhere(pod));
            PodState {
                in_flight: requests,
                waiting,
                prefill,
                context,
                healthy: breaker.allows(position, now)
                    && !down.contains(position)
                    && !(account.open && elsewhere()),
                full: most.is_some_and(|most| requests >= most),
                share: breaker.share(position, now),
                slowness: speed.slowness(&account.pace),
            }
        }));
        speed
    }

    /// A request was sent to this pod.
    pub fn sent(&self, position: usize, now: u64) {
        if let Ok(mut current) = self.current.try_borrow_mut() {
            current.breaker.sent(position, now);
        }
    }

    /// What a request told of a pod, which is named by its position in `router`.
    pub fn judge(
        &self,
        host: &impl Host,
        fleet: &mut Fleet,
        router: &Rc<Router>,
        position: usize,
        verdict: Verdict,
    ) {
        let Ok(mut current) = self.current.try_borrow_mut() else { return };
        let Some(position) = current.position(router, position) else { return };
        let Current { places, breaker, .. } = &mut *current;
        let results = match verdict {
            Verdict::Answer => Results::ANSWER,
            Verdict::Busy(_) => Results::default(),
            Verdict::Failure | Verdict::Hangs | Verdict::Unreachable => Results::FAILURE,
        };
        if let Some(pod) = places.slot_of(position, 0) {
            fleet.index.load_mut().answered(pod, results);
        }
        let results = places.account(&fleet.index, position).results;
        if breaker.judge(position, verdict, fleet.ticks(), results) {
            fleet.metrics.add(host, Metric::Opened, 1);
        }
        if matches!(verdict, Verdict::Busy(_)) {
            fleet.metrics.add(host, Metric::PodsBusy, 1);
        }
    }

    /// A pod told how much of a prompt was in its cache.
    pub fn tells_cached(&self, router: &Rc<Router>, position: usize) {
        if let Ok(mut current) = self.current.try_borrow_mut()
            && let Some(position) = current.position(router, position)
        {
            current.tells.insert(position);
        }
    }

    /// Whether a pod ever did.
    pub fn does_tell_cached(&self, router: &Rc<Router>, position: usize) -> bool {
        let tells = |current: &Current| Some(current.tells.contains(current.position(router, position)?));
        self.with_current(tells).flatten().unwrap_or(false)
    }

    /// What an engine said of itself in an answer's headers.
    pub fn hear(&self, router: &Router, position: usize, reading: Reading) {
        if let (Some(pod), Some(scout)) = (router.pods().get(position), &self.scout)
            && let Ok(mut scout) = scout.try_borrow_mut()
        {
            scout.hear(&pod.id(), reading);
        }
    }

    /// Looks at what is overdue: pods that hang, and prompts that must have been prefilled.
    fn overdue(&self, host: &impl Host, fleet: &mut Fleet) {
        while let Some((running, overdue)) = fleet.waiting.overdue(fleet.ticks()) {
            let mut now = running.get();
            match overdue {
                Overdue::Prefilled => {
                    fleet.index.load_mut().prefilled(&mut now);
                    running.set(now);
                }
                Overdue::Hangs => {
                    let position = self.with_current(|current| current.places.position_of(now.pod)).flatten();
                    if let Some(position) = position {
                        self.judge(host, fleet, &self.router(), position, Verdict::Hangs);
                    }
                }
            }
        }
    }

    /// Tells the other VMs which pods this one passes over.
    fn tell_breaker(&self, host: &impl Host, fleet: &mut Fleet) {
        let Ok(mut current) = self.current.try_borrow_mut() else { return };
        let now = fleet.ticks();
        let mut passed = 0;
        let Current { router, places, .. } = &mut *current;
        places.update(router, &fleet.index);
        for position in 0..current.router.pods().len() {
            let open = current.breaker.is_open(position, now);
            for pod in current.places.slots_of(position) {
                fleet.index.load_mut().set_open(pod, open);
            }
            passed += u64::from(current.places.account(&fleet.index, position).open);
        }
        if fleet.index.holds_lease() {
            fleet.metrics.record(host, Metric::PodsPassed, passed);
        }
    }

    /// The slots of all of a pod's caches that have one.
    pub fn slots_of(&self, position: usize) -> Vec<PodRef> {
        self.with_current(|current| current.places.slots_of(position).collect()).unwrap_or_default()
    }

    /// The slot of one of a pod's caches, or of its first where that has none.
    pub fn slot_of(&self, router: &Rc<Router>, position: usize, rank: u32) -> Option<PodRef> {
        self.with_current(|current| {
            let position = current.position(router, position)?;
            current.places.slot_of(position, rank).or_else(|| current.places.slot_of(position, 0))
        })
        .flatten()
    }

    /// Adds one to a metric, where the fleet is not in use at this moment.
    pub fn count(&self, host: &impl Host, metric: Metric) {
        if let Ok(fleet) = self.fleet.try_borrow() {
            fleet.metrics.add(host, metric, 1);
        }
    }

    /// Reads what was learnt of the pods by asking; where other pods were found, decides among those from now on.
    fn look_around(&self, host: &impl Host) {
        let Some(scout) = &self.scout else { return };
        let Ok(mut scout) = scout.try_borrow_mut() else { return };
        let Ok(mut fleet) = self.fleet.try_borrow_mut() else { return };
        let router = self.router();
        scout.tick(host, &mut fleet, &router);
        let board = scout.board();
        let Ok(mut current) = self.current.try_borrow_mut() else { return };
        if current.board != board.version() {
            current.board = board.version();
            let reach = current.router.reach(board.found());
            current.down =
                (0..).zip(&reach.healthy).filter(|(_, healthy)| !**healthy).map(|(at, _)| at).collect();
            if reach.pods != current.router.pods()
                && let Some(next) = self.found(host, board)
            {
                current.replace(next);
                let ids = current.router.pods().iter().flat_map(Pod::cache_ids).collect();
                fleet.name_pods(self.id, ids);
                // All VMs read the board before they join pods, so nobody joins again who is gone.
                let gone = router.pods().iter().flat_map(Pod::cache_ids);
                fleet.say_who_left(host, gone);
            }
        }
        drop(current);
        drop(fleet);
        self.read_board(board);
    }

    fn read_board(&self, board: &Board) {
        let Ok(mut current) = self.current.try_borrow_mut() else { return };
        // Without news, what was told becomes stale.
        if std::mem::replace(&mut current.news, board.news()) == board.news()
            && !board.now().is_multiple_of(NOW_AND_THEN)
        {
            return;
        }
        let told = |key: &u64| board.told(*key).map(|told| told.engine.clone());
        current.engines = current.keys.iter().map(told).collect();
    }

    /// Another router, if the pods that were found make one.
    fn found(&self, host: &impl Host, board: &Board) -> Option<Router> {
        match config::load_with(&self.json, board.found()) {
            Ok(router) => Some(router),
            Err(mistakes) => {
                host.log(
                    Level::Error,
                    &format!("warmpath: the pods that were found are refused: {mistakes}"),
                );
                None
            }
        }
    }
}

fn keys(router: &Router) -> Vec<u64> {
    router.pods().iter().map(|pod| key(&pod.id())).collect()
}

impl Current {
    /// The present position of a pod that `router` knows by another.
    fn position(&self, router: &Rc<Router>, position: usize) -> Option<usize> {
        if Rc::ptr_eq(router, &self.router) {
            return Some(position);
        }
        let pod = router.pods().get(position)?;
        self.router.pods().iter().position(|now| now.name == pod.name && now.target == pod.target)
    }

    /// Decides among other pods from now on. What is known of those that stay is kept.
    fn replace(&mut self, next: Router) {
        let old = std::mem::replace(&mut self.router, Rc::new(next));
        let before = self.router.pods().iter().map(|pod| {
            old.pods().iter().position(|before| before.name == pod.name && before.target == pod.target)
        });
        self.breaker.replace(before);
        self.keys = keys(&self.router);
        self.news = 0;
        self.places = Places::default();
        self.tells = Positions::default();
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        if let Ok(mut fleet) = self.fleet.try_borrow_mut() {
            fleet.forget(self.id);
        }
    }
}
