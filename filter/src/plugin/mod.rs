//! One plugin configuration in one VM: what its streams share.

mod pods;
mod steps;
mod vm;

pub use pods::Current;
pub use vm::Vm;
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use vm::index_settings;

use crate::config::{Router, Settings, TokenizerSettings};
use crate::events::Complaints;
use crate::fleet::Fleet;
use crate::guard::Guard;
use crate::host::{Host, Level};
use crate::metrics::Metric;
use crate::pods::{Pod, Scout, Waiting};
use crate::prompt::delivery::Delivery;
use crate::stream::{Progress, Stream};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

/// Most connections that are closed with one tick.
const MOST_CLOSING: usize = 65_536;

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
    /// Requests that wait for their first token.
    pub waiting: RefCell<Waiting>,
    /// In the order of the configuration.
    tokenizers: Vec<Rc<RefCell<Delivery>>>,
    /// What asks the pods and Envoy's admin, where the configuration wants that.
    scout: Option<Rc<RefCell<Scout>>>,
    /// What prefill pods were asked, by address, and when.
    learnt: RefCell<BTreeMap<String, (u64, String)>>,
    /// Bytes of bodies that are kept, so that their requests can be started again.
    pub kept: Rc<Cell<usize>>,
    /// Prefills whose end nobody will hear of, by the tick at which they are taken for done.
    orphans: RefCell<Vec<(u64, Progress)>>,
    /// When what was complained of last.
    pub complaints: Complaints,
    /// Connections that are to be closed.
    closing: RefCell<Vec<u32>>,
    /// Failures of tokenizers as they were last added to Envoy's stats.
    failures: Cell<u64>,
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
        let current = Current::new(first.clone(), settings.breaker);
        let plugin = Self {
            id,
            json,
            settings,
            first,
            current: RefCell::new(current),
            fleet,
            guard: RefCell::default(),
            waiting: RefCell::default(),
            tokenizers,
            scout,
            learnt: RefCell::default(),
            kept: Rc::default(),
            orphans: RefCell::default(),
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
        self.end_orphans(host, &mut fleet);
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
                     allow_on_headers_stop_iteration: true in the wasm filter's config (next to vm_config), or routing.via to \
                     \"filter-state\" where nothing can set it; until then requests go by load, unread, and those of workflows are answered with 503.",
                );
            }
        }
    }

    /// Adds one to a metric, where the fleet is not in use at this moment.
    pub fn count(&self, host: &impl Host, metric: Metric) {
        if let Ok(fleet) = self.fleet.try_borrow() {
            fleet.metrics.add(host, metric, 1);
        }
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        if let Ok(mut fleet) = self.fleet.try_borrow_mut() {
            fleet.forget(self.id);
            // Nobody else knows of them.
            for (_, progress) in self.orphans.take() {
                progress.forget(&mut fleet);
            }
        }
    }
}
