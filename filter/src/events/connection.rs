//! One connection of an engine's publisher to Envoy, from its first byte to its end.

use crate::host::Host;
use crate::plugin::Plugin;
use std::rc::Rc;

use super::batch;
use super::feeds::Speaker;
use super::intake::{Intake, Message, Problem, Source};
use super::zmtp::Subscriber;

/// Bytes of a message that are kept before its topic is looked at.
const CARRIED_UNKNOWN: usize = 64 << 10;

/// State of one connection.
pub struct Connection {
    id: u32,
    plugin: Rc<Plugin>,
    subscriber: Subscriber,
    /// The topic of the last message, and whose it is: mostly the next one's, too.
    known: Option<(Vec<u8>, Source)>,
    is_refused: bool,
}

impl Connection {
    /// A connection of which nothing was heard. `id` is Envoy's number of its context.
    pub fn new(id: u32, plugin: Rc<Plugin>) -> Self {
        let subscriber = Subscriber::new(plugin.settings.kv_events.max_message_bytes);
        Self { id, plugin, subscriber, known: None, is_refused: false }
    }

    /// The next bytes arrived. Returns what is to be sent.
    pub fn on_data(&mut self, host: &impl Host, bytes: &[u8]) -> Vec<u8> {
        let mut answer = Vec::new();
        if self.is_refused {
            return answer;
        }
        let plugin = self.plugin.clone();
        let intake = Intake { host, plugin: &plugin };
        let mut problem = None;
        let Self { id, subscriber, known, .. } = self;
        let received = subscriber.receive(bytes, &mut answer, &mut |frames| match message(
            &intake, *id, known, frames,
        ) {
            Ok(()) => true,
            Err(Problem::Stranger(why)) => {
                problem = Some(Problem::Stranger(why));
                false
            }
            Err(other) => {
                intake.report(&who(known.as_ref()), &other);
                true
            }
        });
        if let Err(refused) = received {
            let problem = problem.unwrap_or_else(|| Problem::Protocol(refused.to_string()));
            let who = match &self.known {
                Some(_) => who(self.known.as_ref()),
                None => format!("a connection from {}", address(host)),
            };
            intake.report(&who, &problem);
            self.refuse(host);
        }
        intake.flush();
        if !self.is_refused
            && let Err(problem) = self.judge_what_is_carried(&intake)
        {
            intake.report(&format!("a connection from {}", address(host)), &problem);
            self.refuse(host);
        }
        answer
    }

    /// A long message of a stranger is not waited for.
    fn judge_what_is_carried<H: Host>(&self, intake: &Intake<'_, H>) -> Result<(), Problem> {
        if self.subscriber.carried() <= CARRIED_UNKNOWN {
            return Ok(());
        }
        let Some(topic) = self.subscriber.first_frame() else {
            return Err(Problem::Protocol(format!("a topic of more than {CARRIED_UNKNOWN} bytes")));
        };
        match &self.known {
            Some((last, _)) if last == topic => Ok(()),
            _ => intake.source_of(topic).map(|_| ()),
        }
    }

    /// Nothing more is taken from this connection, and soon it is closed.
    fn refuse(&mut self, host: &impl Host) {
        self.is_refused = true;
        self.subscriber = Subscriber::new(0);
        Intake { host, plugin: &self.plugin }.closed(self.id);
        self.plugin.close_soon(self.id);
    }

    /// The connection was closed, by whomever.
    pub fn on_close(&mut self, host: &impl Host) {
        if !std::mem::replace(&mut self.is_refused, true) {
            Intake { host, plugin: &self.plugin }.closed(self.id);
        }
    }
}

fn message<H: Host>(
    intake: &Intake<'_, H>,
    id: u32,
    known: &mut Option<(Vec<u8>, Source)>,
    frames: &[&[u8]],
) -> Result<(), Problem> {
    let (topic, number, payload) = match frames {
        [topic, number, payload] => (*topic, <[u8; 8]>::try_from(*number), *payload),
        _ => {
            let problem =
                format!("a message of {} frames; KV events have topic, sequence and payload", frames.len());
            return Err(Problem::Unreadable(problem));
        }
    };
    let number = number.map(u64::from_be_bytes);
    let number =
        number.map_err(|_| Problem::Unreadable("its sequence is no number of 8 bytes".to_owned()))?;
    let source = match known {
        Some((last, source)) if last == topic => &*source,
        _ => {
            let source = intake.source_of(topic)?;
            &known.insert((topic.to_vec(), source)).1
        }
    };
    let speaker = Speaker::Connection(id);
    let batch = batch::msgpack(payload).map_err(|why| {
        intake.skip(speaker, Some(number));
        Problem::Unreadable(why)
    })?;
    intake.take(&Message { source, batch: &batch, number: Some(number), anew: false, speaker }).map(|_| ())
}

fn who(known: Option<&(Vec<u8>, Source)>) -> String {
    known.map_or_else(|| "a publisher".to_owned(), |(_, source)| source.pod.name.clone())
}

fn address(host: &impl Host) -> String {
    let address = host.property(&["source", "address"]).ok().flatten().unwrap_or_default();
    String::from_utf8_lossy(&address).into_owned()
}
