//! What engines say of their own load: in their metrics, which somebody asks for, and in headers of their answers.
//!
//! [`prometheus`] reads the text of metrics, [`engines`] knows what each engine's series mean, and [`orca`] reads the header.
//! All of them end in a [`Reading`]. What an engine says is hostile: whatever its size, little of it is kept.

pub mod engines;
pub mod orca;
pub mod prometheus;

/// Most adapters of one list that are kept.
pub const MAX_ADAPTERS: usize = 64;
/// Longest name of an adapter that is kept, in bytes. A name that was cut would be another's.
pub const MAX_ADAPTER_NAME: usize = 256;

/// What an engine said of its load. What it didn't say, or said in no usable number, is absent.
///
/// An engine of several data-parallel ranks, or of several models, is one engine here.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reading {
    /// Requests that it works on, of all ranks.
    pub running: Option<f32>,
    /// Requests that wait in it, of all ranks.
    pub waiting: Option<f32>,
    /// Share of its KV cache that is in use, from 0 to 1; the mean over ranks.
    pub kv_usage: Option<f32>,
    /// Tokens in a block of its KV cache.
    pub block_size: Option<u32>,
    /// Blocks that its KV cache has room for, of all ranks.
    pub blocks: Option<u64>,
    /// Whether all of its ranks sleep: it serves nothing until it is woken.
    pub asleep: Option<bool>,
    /// Its LoRA adapters.
    pub lora: Option<LoraReading>,
    /// What was looked up in its prefix cache since it started, in a unit of its own: tokens or blocks.
    pub prefix_queries: Option<f64>,
    /// What of that was found, in the same unit.
    pub prefix_hits: Option<f64>,
    /// Lines that could not be read.
    pub unread: u64,
}

/// The LoRA adapters that an engine has requests for.
///
/// vLLM 0.32 names each in both lists, whether its requests run or wait (`LoRARequestStates` in vllm/v1/metrics/stats.py).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoraReading {
    /// Most adapters that it can work with at once; 0 where it doesn't say.
    pub max: u32,
    /// Adapters of requests that it works on.
    pub running: Vec<String>,
    /// Adapters of requests that wait.
    pub waiting: Vec<String>,
}

/// Whether a number can be meant: nothing that is read here is negative or without an end.
fn is_usable(value: f64) -> bool {
    value.is_finite() && value >= 0.0
}

/// Numbers that several series, or several headers, give for one thing.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    total: f64,
    count: u32,
}

impl Sum {
    /// Adds a number; one that can't be meant is left out.
    fn add(&mut self, value: f64) {
        if is_usable(value) {
            // A sum of numbers that are finite need not be.
            self.total = (self.total + value).min(f64::MAX);
            self.count = self.count.saturating_add(1);
        }
    }

    /// The sum, if there was any number.
    fn total(self) -> Option<f64> {
        (self.count > 0).then_some(self.total)
    }

    /// The sum as a number of requests.
    fn requests(self) -> Option<f32> {
        self.total().map(|total| total.min(f32::MAX.into()) as f32)
    }

    /// The mean.
    fn mean(self) -> Option<f64> {
        self.total().map(|total| total / f64::from(self.count))
    }

    /// The mean of shares.
    fn share(self) -> Option<f32> {
        self.mean().map(|mean| mean.min(1.0) as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_cannot_be_meant_are_left_out() {
        let mut sum = Sum::default();
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0] {
            sum.add(value);
        }
        assert_eq!((sum.total(), sum.requests(), sum.share()), (None, None, None));
        [0.5, f64::NAN, 0.25].into_iter().for_each(|value| sum.add(value));
        assert_eq!((sum.total(), sum.requests(), sum.share()), (Some(0.75), Some(0.75), Some(0.375)));
    }

    #[test]
    fn sums_end_before_infinity_and_shares_at_one() {
        let mut sum = Sum::default();
        [f64::MAX, f64::MAX].into_iter().for_each(|value| sum.add(value));
        assert_eq!((sum.total(), sum.requests(), sum.share()), (Some(f64::MAX), Some(f32::MAX), Some(1.0)));
    }
}
