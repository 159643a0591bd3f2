//! Asks Envoy's admin which pods there are, and engines how they are, and puts what it learns on the [`Board`].
//!
//! Of all VMs the one that keeps house asks; every VM reads the board. Engines are asked one after the other over the period, so
//! that there is never a burst. What can't be learnt changes nothing: pods that were found stay, and what an engine said is
//! forgotten when it is too old.

mod follow;

use super::board::{self, Board, Content, Told};
use super::metrics::{Reading, engines};
use super::{Engine, Lora, MOST_ADAPTERS, Pod, adapter, discovery};
use crate::config::{DiscoverySettings, MetricsSettings, Router, Routing, Settings};
use crate::fleet::Fleet;
use crate::host::{Headers, Host, Level};
use crate::metrics::Metric;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::rc::Rc;

/// Longest answer of Envoy's admin: hosts take about a kilobyte.
const MAX_ADMIN_BYTES: usize = 8 << 20;
/// Longest answer of an engine: they are some tens of kilobytes.
const MAX_METRICS_BYTES: usize = 1 << 20;
/// Ticks beyond its time-out after which an answer that never came is given up.
const LOST: u64 = 20;
/// Ticks after which the board is written though nothing changed: who stops is taken for gone.
const HEARTBEAT: u64 = 50;
/// Times in a row that nobody must be found, or nothing learnt, before it means something.
const SURE: u32 = 3;
/// Ticks between looks at what changes rarely.
const NOW_AND_THEN: u64 = 5;
/// Ticks between complaints of one kind.
const COMPLAINTS: u64 = 600;

/// What was asked.
#[derive(Debug)]
enum Asked {
    Admin,
    Engine(Box<Pod>),
}

/// Asks for one configuration, and has its board, in one VM.
#[derive(Debug)]
pub struct Scout {
    board: Board,
    discovery: Option<DiscoverySettings>,
    metrics: Option<MetricsSettings>,
    routing: Routing,
    /// Whether this VM asks.
    asks: bool,
    content: Content,
    /// Looks in a row that failed.
    failed_looks: u32,
    /// Times in a row that nobody was found.
    empty: u32,
    changed: bool,
    /// Whether other pods were found.
    urgent: bool,
    written: u64,
    ticked: Option<u64>,
    next_look: u64,
    calls: BTreeMap<u32, (Asked, u64)>,
    /// Prompt tokens that engines have looked up since they started, by key.
    queries: BTreeMap<u64, f64>,
    complained: [Option<u64>; 3],
}

/// Kinds of complaints.
#[derive(Clone, Copy)]
enum Complaint {
    Admin,
    Engine,
    BlockSize,
}

impl Scout {
    /// A scout that has asked nothing yet. `fingerprint`: of the configuration.
    pub fn new(fingerprint: u64, settings: &Settings) -> Self {
        let stale = settings.metrics.as_ref().map_or(100, |metrics| metrics.stale_ticks);
        Self {
            board: Board::new(fingerprint, stale),
            discovery: settings.discovery.clone(),
            metrics: settings.metrics.clone(),
            routing: settings.routing.clone(),
            asks: false,
            content: Content::default(),
            failed_looks: 0,
            empty: 0,
            changed: false,
            urgent: false,
            written: 0,
            ticked: None,
            next_look: 0,
            calls: BTreeMap::new(),
            queries: BTreeMap::new(),
            complained: [None; 3],
        }
    }

    /// What was learnt.
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// A pod's engine said something in the headers of an answer.
    pub fn hear(&mut self, id: &str, reading: Reading) {
        self.board.hear(id, engine(reading));
    }

    /// Reads the board and, where this VM keeps house, asks who is due. Once a tick, however many configurations share it.
    pub fn tick(&mut self, host: &impl Host, fleet: &mut Fleet, router: &Rc<Router>) {
        let now = fleet.ticks();
        if self.ticked.replace(now) == Some(now) || fleet.index.life().is_none() {
            return;
        }
        if self.board.read(host, now).is_err() {
            fleet.metrics.add(host, Metric::HostErrors, 1);
        }
        let asks = fleet.index.holds_lease();
        if asks && !self.asks {
            // What the one before learnt is the beginning.
            self.content = self.board.content().clone();
            self.calls.clear();
            self.queries.clear();
        }
        self.asks = asks;
        if !asks {
            return;
        }
        self.give_up_lost(host, fleet);
        self.look(host, fleet);
        self.ask_engines(host, fleet, router);
        if now.is_multiple_of(NOW_AND_THEN) {
            self.keep_bounds(fleet, router);
            self.compare_blocks(host, fleet, router);
            self.report(host, fleet, router);
        }
        // What every VM reads and takes in: twice a period, not with each answer.
        let pause = self.metrics.as_ref().map_or(1, |metrics| metrics.period_ticks / 2);
        let since = now.saturating_sub(self.written);
        if (self.urgent || self.changed && since >= pause || since >= HEARTBEAT)
            && matches!(self.board.write(host, &self.content), Ok(true))
        {
            (self.changed, self.urgent, self.written) = (false, false, now);
        }
    }

    fn report(&self, host: &impl Host, fleet: &Fleet, router: &Router) {
        let keys = router.pods().iter().map(|pod| board::key(&pod.id()));
        let fresh = keys.filter(|key| self.board.told(*key).is_some()).count();
        fleet.metrics.record(host, Metric::EnginesHeard, fresh as u64);
        fleet.metrics.record(host, Metric::Pods, router.pods().len() as u64);
        let left_out = router.reach(self.board.found()).left_out;
        fleet.metrics.record(host, Metric::LeftOut, left_out as u64);
    }

    fn give_up_lost(&mut self, host: &impl Host, fleet: &Fleet) {
        let now = fleet.ticks();
        let lost: Vec<_> =
            self.calls.iter().filter(|(_, (_, until))| now >= *until).map(|(call, _)| *call).collect();
        for call in lost {
            if let Some((asked, _)) = self.calls.remove(&call) {
                self.failed(host, fleet, &asked, &"no answer came");
            }
        }
    }

    fn look(&mut self, host: &impl Host, fleet: &Fleet) {
        let Some(discovery) = &self.discovery else { return };
        let asked = |(asked, _): &(Asked, u64)| matches!(asked, Asked::Admin);
        if fleet.ticks() < self.next_look || self.calls.values().any(asked) {
            return;
        }
        self.next_look = fleet.ticks().saturating_add(discovery.period.as_millis() as u64 / 100);
        let path = format!("/clusters?format=json&filter={}", discovery.filter());
        let headers = [(":method", "GET"), (":path", &*path), (":authority", &*discovery.cluster)];
        let until = fleet.ticks() + discovery.timeout.as_millis() as u64 / 100 + LOST;
        match host.call(&discovery.cluster, &headers, b"", discovery.timeout) {
            Ok(call) => {
                self.calls.insert(call, (Asked::Admin, until));
            }
            Err(error) => self.failed(host, fleet, &Asked::Admin, &error),
        }
    }

    /// Asks the engines whose turn it is in this tick: each has its own tick of the period.
    fn ask_engines(&mut self, host: &impl Host, fleet: &Fleet, router: &Rc<Router>) {
        let Some(metrics) = self.metrics.clone() else { return };
        let pods = router.pods();
        let period = metrics.period_ticks.max(1);
        let turn = fleet.ticks() % period;
        let due = pods.iter().enumerate().filter(|(at, _)| *at as u64 * period / pods.len() as u64 == turn);
        for (_, pod) in due {
            let is_asked = |(asked, _): &(Asked, u64)| matches!(asked, Asked::Engine(other) if other.target == pod.target);
            if self.calls.values().any(is_asked) {
                continue;
            }
            let asked = Asked::Engine(Box::new(pod.clone()));
            match self.ask(host, &metrics, pod) {
                Ok(call) => {
                    let until = fleet.ticks() + metrics.timeout.as_millis() as u64 / 100 + LOST;
                    self.calls.insert(call, (asked, until));
                }
                Err(error) => self.failed(host, fleet, &asked, &error),
            }
        }
    }

    fn ask(&self, host: &impl Host, metrics: &MetricsSettings, pod: &Pod) -> crate::host::HostResult<u32> {
        let target = match metrics.port.zip(pod.target.rsplit_once(':')) {
            Some((port, (ip, _))) => format!("{ip}:{port}"),
            None => pod.target.clone(),
        };
        let cluster = pod.called_by(metrics.cluster.as_deref());
        let mut headers = vec![
            (":method", "GET"),
            (":path", &*metrics.path),
            (":authority", &*target),
            ("accept", "text/plain"),
        ];
        if let Routing::Address { header, .. } = &self.routing {
            headers.push((header, &target));
        }
        let authorization = metrics.api_key.as_ref().map(|key| format!("Bearer {key}"));
        if let Some(authorization) = &authorization {
            headers.push(("authorization", authorization));
        }
        host.call(cluster, &headers, b"", metrics.timeout)
    }

    /// An answer came to a call of this VM. Says whether it was for this scout.
    pub fn on_answer(&mut self, host: &impl Host, fleet: &mut Fleet, call: u32) -> bool {
        let Some((asked, _)) = self.calls.remove(&call) else { return false };
        let most = match asked {
            Asked::Admin => MAX_ADMIN_BYTES,
            Asked::Engine(_) => MAX_METRICS_BYTES,
        };
        let status = host.header(Headers::Answer, ":status").ok().flatten().unwrap_or_default();
        let body = match status.as_slice() {
            b"200" => host.answer_body(most + 1).map_err(|error| error.to_string()),
            b"" => Err("no answer in time".to_owned()),
            status => Err(format!("answered {}", String::from_utf8_lossy(status))),
        };
        let body = body.and_then(|body| match body.len() {
            length if length > most => Err(format!("answered more than {most} bytes")),
            _ => Ok(body),
        });
        let learnt = body.and_then(|body| match &asked {
            Asked::Admin => self.found(&body),
            Asked::Engine(pod) => self.said(host, fleet, pod, &body),
        });
        match learnt {
            Ok(()) => fleet.metrics.add(host, Metric::Asked, 1),
            Err(error) => self.failed(host, fleet, &asked, &error),
        }
        true
    }

    fn found(&mut self, body: &[u8]) -> Result<(), String> {
        let mut found = discovery::read(body)?;
        // Envoy tells of clusters in any order.
        found.sort_unstable();
        self.failed_looks = 0;
        self.empty = if found.is_empty() { self.empty.saturating_add(1) } else { 0 };
        // Something else may have answered, or Envoy has just begun to know the cluster.
        let sure = !found.is_empty() || self.empty >= SURE;
        if sure && found != self.content.found {
            (self.content.found, self.urgent) = (found, true);
        }
        Ok(())
    }

    fn said(&mut self, host: &impl Host, fleet: &mut Fleet, pod: &Pod, body: &[u8]) -> Result<(), String> {
        let Some(metrics) = &self.metrics else { return Ok(()) };
        let reading = engines::read(body, &metrics.mapping);
        let reading = reading.ok_or_else(|| format!("none of the series that {} has", metrics.engine))?;
        let key = board::key(&pod.id());
        if let Some(queries) = reading.prefix_queries {
            let before = self.queries.insert(key, queries);
            if before.is_some_and(|before| queries < before) {
                follow::restarted(host, fleet, pod);
            }
        }
        let told = Told {
            block_size: reading.block_size,
            blocks: reading.blocks.and_then(|blocks| u32::try_from(blocks).ok()),
            engine: engine(reading),
            at: fleet.ticks() as i64,
        };
        self.content.told.insert(key, told);
        self.changed = true;
        Ok(())
    }

    fn failed(&mut self, host: &impl Host, fleet: &Fleet, asked: &Asked, why: &dyn Display) {
        fleet.metrics.add(host, Metric::AskedInVain, 1);
        if matches!(asked, Asked::Admin) {
            self.failed_looks = self.failed_looks.saturating_add(1);
            self.forget_health();
        }
        let (kind, text) = match asked {
            Asked::Admin => {
                let cluster =
                    self.discovery.as_ref().map(|discovery| discovery.cluster.as_str()).unwrap_or_default();
                let cure = "the pods that were found before stay. Point discovery.cluster at Envoy's admin";
                (Complaint::Admin, format!("warmpath: Envoy's admin, by cluster {cluster:?}: {why}; {cure}."))
            }
            Asked::Engine(pod) => {
                let name = &pod.name;
                let path = self.metrics.as_ref().map(|metrics| metrics.path.as_str()).unwrap_or_default();
                let cure =
                    "it is scored like the others meanwhile. See metrics.engine, .cluster, .path and .port";
                (Complaint::Engine, format!("warmpath: {path} of pod {name}: {why}; {cure}."))
            }
        };
        self.complain(host, fleet.ticks(), kind, &text);
    }

    /// Who was down when nothing more could be learnt is not down for ever.
    fn forget_health(&mut self) {
        if self.failed_looks >= SURE {
            for found in self.content.found.iter_mut().filter(|found| !found.healthy) {
                (found.healthy, self.changed) = (true, true);
            }
        }
    }

    fn complain(&mut self, host: &impl Host, now: u64, kind: Complaint, text: &str) {
        let Some(last) = self.complained.get_mut(kind as usize) else { return };
        if last.is_none_or(|last| now.saturating_sub(last) >= COMPLAINTS) {
            *last = Some(now);
            host.log(Level::Warn, text);
        }
    }
}

fn engine(reading: Reading) -> Engine {
    let digests = |names: Vec<String>| names.iter().take(MOST_ADAPTERS).map(|name| adapter(name)).collect();
    Engine {
        asleep: reading.asleep.unwrap_or(false),
        running: reading.running,
        waiting: reading.waiting,
        kv_usage: reading.kv_usage,
        lora: reading.lora.map(|lora| Lora {
            max: lora.max,
            running: digests(lora.running),
            waiting: digests(lora.waiting),
        }),
    }
}

#[cfg(test)]
mod tests;
