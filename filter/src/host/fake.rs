//! A host in memory that obeys Envoy's rules: one for each simulated VM, over shared data that they have in common.

use super::*;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Shared data of one simulated Envoy process. Clones are the same store.
#[derive(Clone, Default)]
pub struct FakeShared(Arc<Mutex<SharedState>>);

#[derive(Default)]
struct SharedState {
    values: HashMap<String, (Vec<u8>, u32)>,
    last_cas: u32,
    watch: Option<Watch>,
}

/// Is told the key and value of every write, in the order in which they happen.
pub type Watch = Box<dyn FnMut(&str, &[u8]) + Send>;

/// Is told of every call on shared data, before it happens and after; what it answers becomes the answer of the call.
/// An error before means that nothing happened, one after that the answer got lost. It may also wait, so that other
/// VMs go on, or unwind, which is how a VM dies.
pub type Gate = Box<dyn Fn(Moment) -> HostResult<()> + Send>;

/// When a [`Gate`] is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Nothing has happened yet.
    Before,
    /// The call has had its effect.
    After,
}

impl FakeShared {
    fn lock(&self) -> std::sync::MutexGuard<'_, SharedState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of keys that exist. They are never freed, so a test can hold this to a bound.
    pub fn keys(&self) -> usize {
        self.lock().values.len()
    }

    /// From now on every write is told to `watch`.
    pub fn watch(&self, watch: Watch) {
        self.lock().watch = Some(watch);
    }

    /// Bytes of all values.
    pub fn bytes(&self) -> usize {
        self.lock().values.values().map(|(value, _)| value.len()).sum()
    }
}

impl SharedData for FakeShared {
    fn shared_get(&self, key: &str) -> HostResult<Option<Versioned>> {
        let state = self.lock();
        Ok(state
            .values
            .get(key)
            .and_then(|(value, cas)| Some(Versioned { value: value.clone(), cas: Cas::new(*cas)? })))
    }

    fn shared_set(&self, key: &str, value: &[u8], expect: Expect) -> HostResult<Write> {
        let mut state = self.lock();
        // As Envoy does: a mismatch is only seen where the key exists.
        let wanted = match expect {
            Expect::Anything => 0,
            Expect::Absent => u32::MAX,
            Expect::Version(cas) => cas.get(),
        };
        if let Some((_, cas)) = state.values.get(key)
            && wanted != 0
            && wanted != *cas
        {
            return Ok(Write::Conflict);
        }
        state.last_cas = state.last_cas.checked_add(1).unwrap_or(1);
        let cas = state.last_cas;
        state.values.insert(key.to_owned(), (value.to_owned(), cas));
        if let Some(watch) = &mut state.watch {
            watch(key, value);
        }
        Ok(Write::Done)
    }
}

/// One simulated VM's view of Envoy. Fields are scripted and inspected by tests.
#[derive(Default)]
pub struct FakeHost {
    /// The process-wide store.
    pub shared: FakeShared,
    /// What happened, and what to answer.
    pub state: RefCell<FakeState>,
    /// Where one is set, asked at every call on shared data.
    pub gate: Option<Gate>,
}

/// Scripted answers and recorded effects of a [`FakeHost`].
#[derive(Default)]
pub struct FakeState {
    /// Wall clock.
    pub now: Duration,
    /// Lines logged so far.
    pub logs: Vec<(Level, String)>,
    /// Answer of `plugin_configuration`.
    pub configuration: Vec<u8>,
    /// Defined metrics by name, in the order of their ids.
    pub metrics: Vec<(String, MetricKind, i64)>,
    /// Properties, keyed by their path joined with `.`.
    pub properties: HashMap<String, Vec<u8>>,
    /// Filter state written so far.
    pub filter_state: HashMap<String, Vec<u8>>,
    /// Request headers of the current stream.
    pub request: HashMap<String, Vec<u8>>,
    /// Response headers of the current stream.
    pub response: HashMap<String, Vec<u8>>,
    /// Buffered request body.
    pub body: Vec<u8>,
    /// The part of the response body that is passing.
    pub response_body: Vec<u8>,
    /// Calls so far. The number of a call is its place here.
    pub calls: Vec<Call>,
    /// Headers of the answer that is being handed over.
    pub answer: HashMap<String, Vec<u8>>,
    /// Body of the answer that is being handed over.
    pub answer_body: Vec<u8>,
    /// Stream that calls speak of, where one was set.
    pub effective_context: Option<u32>,
    /// Streams resumed so far.
    pub resumed: Vec<Option<u32>>,
    /// How often a held response was let go on.
    pub responses_resumed: usize,
    /// Streams broken off so far.
    pub reset: Vec<Option<u32>>,
    /// Local responses sent so far: status, body.
    pub responses: Vec<(u32, Vec<u8>)>,
    /// What has arrived on the current connection.
    pub downstream: Vec<u8>,
    /// Connections closed so far.
    pub closed: Vec<Option<u32>>,
    /// Names of calls that must fail with InternalFailure.
    pub failing: Vec<&'static str>,
}

/// A call that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The cluster.
    pub cluster: String,
    /// All headers, `:path` and its like among them.
    pub headers: HashMap<String, String>,
    /// The body; empty where there is none.
    pub body: Vec<u8>,
}

impl Call {
    /// Its path.
    pub fn path(&self) -> &str {
        self.headers.get(":path").map_or("", String::as_str)
    }
}

impl FakeHost {
    /// A VM in the process that `shared` belongs to.
    pub fn new(shared: &FakeShared) -> Self {
        Self { shared: shared.clone(), state: RefCell::default(), gate: None }
    }

    /// Value of a metric; 0 where it was never defined.
    pub fn metric(&self, name: &str) -> i64 {
        self.state.borrow().metrics.iter().find(|m| m.0 == name).map_or(0, |m| m.2)
    }

    fn pass(&self, moment: Moment) -> HostResult<()> {
        self.gate.as_ref().map_or(Ok(()), |gate| gate(moment))
    }

    fn check(&self, call: &'static str) -> HostResult<()> {
        match self.state.borrow().failing.contains(&call) {
            true => Err(HostError { call, status: 10 }),
            false => Ok(()),
        }
    }
}

impl SharedData for FakeHost {
    fn shared_get(&self, key: &str) -> HostResult<Option<Versioned>> {
        self.check("shared_get")?;
        self.pass(Moment::Before)?;
        let answer = self.shared.shared_get(key);
        self.pass(Moment::After)?;
        answer
    }

    fn shared_set(&self, key: &str, value: &[u8], expect: Expect) -> HostResult<Write> {
        self.check("shared_set")?;
        self.pass(Moment::Before)?;
        let answer = self.shared.shared_set(key, value, expect);
        self.pass(Moment::After)?;
        answer
    }
}

impl Host for FakeHost {
    fn now(&self) -> Duration {
        self.state.borrow().now
    }

    fn log(&self, level: Level, message: &str) {
        self.state.borrow_mut().logs.push((level, message.to_owned()));
    }

    fn set_tick_period(&self, _: Duration) -> HostResult<()> {
        self.check("set_tick_period")
    }

    fn plugin_configuration(&self) -> HostResult<Vec<u8>> {
        self.check("plugin_configuration")?;
        Ok(self.state.borrow().configuration.clone())
    }

    fn define_metric(&self, kind: MetricKind, name: &str) -> HostResult<MetricId> {
        self.check("define_metric")?;
        let metrics = &mut self.state.borrow_mut().metrics;
        let position = metrics.iter().position(|m| m.0 == name).unwrap_or_else(|| {
            metrics.push((name.to_owned(), kind, 0));
            metrics.len() - 1
        });
        Ok(MetricId(position as u32))
    }

    fn increment_metric(&self, id: MetricId, by: i64) -> HostResult<()> {
        self.check("increment_metric")?;
        match self.state.borrow_mut().metrics.get_mut(id.0 as usize) {
            Some(metric) if metric.1 != MetricKind::Counter || by > 0 => {
                metric.2 += by;
                Ok(())
            }
            _ => Err(HostError { call: "increment_metric", status: 2 }),
        }
    }

    fn record_metric(&self, id: MetricId, value: u64) -> HostResult<()> {
        self.check("record_metric")?;
        match self.state.borrow_mut().metrics.get_mut(id.0 as usize) {
            Some(metric) if metric.1 != MetricKind::Counter => {
                metric.2 = value as i64;
                Ok(())
            }
            _ => Err(HostError { call: "record_metric", status: 2 }),
        }
    }

    fn property(&self, path: &[&str]) -> HostResult<Option<Vec<u8>>> {
        self.check("property")?;
        Ok(self.state.borrow().properties.get(&path.join(".")).cloned())
    }

    fn set_filter_state(&self, name: &str, value: &[u8]) -> HostResult<()> {
        self.check("set_filter_state")?;
        self.state.borrow_mut().filter_state.insert(name.to_owned(), value.to_owned());
        Ok(())
    }

    fn headers(&self, map: Headers) -> HostResult<HeaderMap> {
        self.check("headers")?;
        let state = self.state.borrow();
        let headers = match map {
            Headers::Request => &state.request,
            Headers::Response => &state.response,
            Headers::Answer => &state.answer,
        };
        let pairs = headers.iter().map(|(name, value)| (name.as_bytes(), value.as_slice()));
        Ok(HeaderMap::from_wire(HeaderMap::to_wire(pairs)))
    }

    fn header(&self, map: Headers, name: &str) -> HostResult<Option<Vec<u8>>> {
        self.check("header")?;
        let state = self.state.borrow();
        Ok(match map {
            Headers::Request => state.request.get(name).cloned(),
            Headers::Response => state.response.get(name).cloned(),
            Headers::Answer => state.answer.get(name).cloned(),
        })
    }

    fn set_header(&self, map: Headers, name: &str, value: &str) -> HostResult<()> {
        self.check("set_header")?;
        let mut state = self.state.borrow_mut();
        let headers = match map {
            Headers::Request => &mut state.request,
            Headers::Response => &mut state.response,
            Headers::Answer => &mut state.answer,
        };
        headers.insert(name.to_owned(), value.as_bytes().to_owned());
        Ok(())
    }

    fn remove_header(&self, map: Headers, name: &str) -> HostResult<()> {
        self.check("remove_header")?;
        let mut state = self.state.borrow_mut();
        match map {
            Headers::Request => state.request.remove(name),
            Headers::Response => state.response.remove(name),
            Headers::Answer => state.answer.remove(name),
        };
        Ok(())
    }

    fn request_body(&self, max: usize) -> HostResult<Vec<u8>> {
        self.check("request_body")?;
        let state = self.state.borrow();
        Ok(state.body.iter().take(max).copied().collect())
    }

    fn response_body(&self, start: usize, max: usize) -> HostResult<Vec<u8>> {
        self.check("response_body")?;
        Ok(self.state.borrow().response_body.iter().skip(start).take(max).copied().collect())
    }

    fn replace_request_body(&self, body: &[u8], length: Length) -> HostResult<()> {
        self.check("replace_request_body")?;
        match length {
            Length::Set => self.set_header(Headers::Request, "content-length", &body.len().to_string())?,
            Length::Removed => {
                assert!(
                    !self.state.borrow().request.contains_key("content-length"),
                    "it says another length"
                );
            }
        }
        self.state.borrow_mut().body = body.to_owned();
        Ok(())
    }

    fn call(&self, cluster: &str, headers: &[(&str, &str)], body: &[u8], _: Duration) -> HostResult<u32> {
        self.check("call")?;
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let calls = &mut self.state.borrow_mut().calls;
        calls.push(Call { cluster: cluster.to_owned(), headers: headers.collect(), body: body.to_owned() });
        Ok(calls.len() as u32 - 1)
    }

    fn answer_body(&self, max: usize) -> HostResult<Vec<u8>> {
        self.check("answer_body")?;
        Ok(self.state.borrow().answer_body.iter().take(max).copied().collect())
    }

    fn downstream_data(&self, max: usize) -> HostResult<Vec<u8>> {
        self.check("downstream_data")?;
        Ok(self.state.borrow().downstream.iter().take(max).copied().collect())
    }

    fn replace_downstream_data(&self, size: usize, data: &[u8]) -> HostResult<()> {
        self.check("replace_downstream_data")?;
        let mut state = self.state.borrow_mut();
        let size = size.min(state.downstream.len());
        state.downstream.splice(..size, data.iter().copied());
        Ok(())
    }

    fn close_connection(&self) -> HostResult<()> {
        self.check("close_connection")?;
        let mut state = self.state.borrow_mut();
        let connection = state.effective_context;
        state.closed.push(connection);
        Ok(())
    }

    fn set_effective_context(&self, stream: u32) -> HostResult<()> {
        self.check("set_effective_context")?;
        self.state.borrow_mut().effective_context = Some(stream);
        Ok(())
    }

    fn resume_request(&self) -> HostResult<()> {
        self.check("resume_request")?;
        let mut state = self.state.borrow_mut();
        let stream = state.effective_context;
        state.resumed.push(stream);
        Ok(())
    }

    fn resume_response(&self) -> HostResult<()> {
        self.check("resume_response")?;
        self.state.borrow_mut().responses_resumed += 1;
        Ok(())
    }

    fn reset_request(&self) -> HostResult<()> {
        self.check("reset_request")?;
        let mut state = self.state.borrow_mut();
        let stream = state.effective_context;
        state.reset.push(stream);
        Ok(())
    }

    fn respond(&self, status: u32, _: &[(&str, &str)], body: &[u8], _: &str) -> HostResult<()> {
        self.check("respond")?;
        self.state.borrow_mut().responses.push((status, body.to_owned()));
        Ok(())
    }
}
