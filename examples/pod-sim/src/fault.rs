//! Faults on demand: what goes wrong, for which requests, how often.

use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::transfer::Leg;

/// The most faults that wait at once.
pub const MAX_FAULTS: usize = 64;

/// What happens to a request instead of an ordinary answer. All come after its body was read.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Effect {
    /// The connection is closed without an answer.
    Refuse {},
    /// An error answer at once.
    Status {
        /// HTTP status, 400 to 599.
        status: u16,
        /// Seconds for a Retry-After header.
        retry_after: Option<u32>,
    },
    /// Silence: without `after_tokens` not even headers come, else the stream stalls after so many tokens.
    Hang {
        /// Tokens that are still sent.
        after_tokens: Option<usize>,
    },
    /// The connection is closed in the middle of the answer: of a stream after so many tokens, else at half the body.
    Cut {
        /// Tokens that are still sent.
        #[serde(default)]
        after_tokens: usize,
    },
    /// Prefill and decode take longer.
    Slow {
        /// How many times longer, above 0.
        factor: f64,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Fault {
    /// Which requests: those whose path begins so; `None` is all that a client may ask of an engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    /// Of a disaggregated request, only this part.
    #[serde(skip_serializing_if = "Option::is_none")]
    leg: Option<Leg>,
    /// How many more requests it takes; `None` is all, until faults are cleared.
    count: Option<u64>,
    #[serde(flatten)]
    effect: Effect,
}

/// The faults that wait for requests, in the order in which they were asked for.
#[derive(Debug, Default)]
pub struct Faults(Mutex<Vec<Fault>>);

impl Faults {
    /// Adds one from JSON: an [`Effect`] with its `kind`, and optionally `path` (default `/v1/` and `/generate`), `leg` and
    /// `count`.
    /// The error says what is wrong with it.
    pub fn add(&self, json: &[u8]) -> Result<(), String> {
        let value: Value =
            serde_json::from_slice(json).map_err(|error| format!("fault is not JSON: {error}"))?;
        let Value::Object(mut fields) = value else {
            return Err("fault: an object with a `kind` is needed".into());
        };
        let path = fields.remove("path").unwrap_or_default();
        let path = serde_json::from_value(path).map_err(|error| format!("fault path: {error}"))?;
        let leg = fields.remove("leg").unwrap_or_default();
        let leg = serde_json::from_value(leg).map_err(|error| format!("fault leg: {error}"))?;
        let count = fields.remove("count").unwrap_or_default();
        let count = serde_json::from_value(count).map_err(|error| format!("fault count: {error}"))?;
        let effect =
            serde_json::from_value(Value::Object(fields)).map_err(|error| format!("fault: {error}"))?;
        match effect {
            Effect::Status { status, .. } if !(400..600).contains(&status) => {
                return Err(format!("fault status: {status} is not in 400..600"));
            }
            Effect::Slow { factor } if factor.is_nan() || factor <= 0.0 => {
                return Err(format!("fault factor: {factor} is not above 0"));
            }
            _ => {}
        }
        let mut faults = self.lock();
        if faults.len() == MAX_FAULTS {
            return Err(format!(
                "{MAX_FAULTS} faults are waiting already; clear them with DELETE /sim/fault"
            ));
        }
        faults.push(Fault { path, leg, count, effect });
        Ok(())
    }

    /// The effect for a request to `path` that asks for `leg`, if any: of the first fault that fits, which it uses up once.
    pub fn next(&self, path: &str, leg: Leg) -> Option<Effect> {
        let mut faults = self.lock();
        let fits = |fault: &Fault| {
            let begins = match &fault.path {
                Some(begin) => path.starts_with(begin),
                None => path.starts_with("/v1/") || path == "/generate",
            };
            begins && fault.leg.is_none_or(|only| only == leg) && fault.count != Some(0)
        };
        let index = faults.iter().position(fits)?;
        let effect = faults[index].effect.clone();
        if let Some(count) = &mut faults[index].count {
            *count -= 1;
        }
        faults.retain(|fault| fault.count != Some(0));
        Some(effect)
    }

    /// Drops all.
    pub fn clear(&self) {
        self.lock().clear();
    }

    /// Those that wait, as JSON.
    pub fn list(&self) -> Value {
        serde_json::json!(*self.lock())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Fault>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_used_up_in_order_by_the_requests_they_fit() {
        let faults = Faults::default();
        faults.add(br#"{"kind":"status","status":503,"count":1}"#).unwrap();
        faults.add(br#"{"kind":"cut","after_tokens":3}"#).unwrap();
        faults.add(br#"{"kind":"hang","path":"/health","count":1}"#).unwrap();
        assert_eq!(faults.next("/metrics", Leg::Alone), None);
        assert_eq!(faults.next("/health", Leg::Alone), Some(Effect::Hang { after_tokens: None }));
        assert_eq!(faults.next("/health", Leg::Alone), None);
        assert_eq!(
            faults.next("/v1/models", Leg::Alone),
            Some(Effect::Status { status: 503, retry_after: None })
        );
        assert_eq!(faults.next("/v1/models", Leg::Alone), Some(Effect::Cut { after_tokens: 3 }));
        assert_eq!(faults.next("/generate", Leg::Alone), Some(Effect::Cut { after_tokens: 3 }));
        faults.clear();
        assert_eq!(faults.next("/v1/models", Leg::Alone), None);
    }

    #[test]
    fn a_leg_may_be_a_condition() {
        let faults = Faults::default();
        faults.add(br#"{"kind":"refuse","leg":"decode","count":1}"#).unwrap();
        assert_eq!(faults.next("/generate", Leg::Alone), None);
        assert_eq!(faults.next("/generate", Leg::Prefill), None);
        assert_eq!(faults.next("/generate", Leg::Decode), Some(Effect::Refuse {}));
        assert!(faults.add(br#"{"kind":"refuse","leg":"both"}"#).unwrap_err().contains("fault leg"));
    }

    #[test]
    fn a_wrong_fault_is_refused_with_the_reason() {
        let faults = Faults::default();
        for (json, reason) in [
            ("{", "not JSON"),
            ("[]", "object"),
            (r#"{"kind":"explode"}"#, "explode"),
            (r#"{"kind":"refuse","cuont":1}"#, "cuont"),
            (r#"{"kind":"status","status":200}"#, "200"),
            (r#"{"kind":"status"}"#, "status"),
            (r#"{"kind":"slow","factor":0}"#, "factor"),
            (r#"{"kind":"refuse","count":-1}"#, "count"),
        ] {
            let error = faults.add(json.as_bytes()).unwrap_err();
            assert!(error.contains(reason), "{json}: {error}");
        }
        for _ in 0..MAX_FAULTS {
            faults.add(br#"{"kind":"refuse"}"#).unwrap();
        }
        assert!(faults.add(br#"{"kind":"refuse"}"#).is_err());
    }
}
