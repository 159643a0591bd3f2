//! Any bytes as the metrics of each engine, and as the header that tells load.
#![no_main]

use libfuzzer_sys::fuzz_target;
use warmpath::pods::metrics::engines::{Mapping, Names, Number, Usage, read};
use warmpath::pods::metrics::prometheus::Samples;
use warmpath::pods::metrics::{MAX_ADAPTER_NAME, MAX_ADAPTERS, Reading, orca};
use warmpath_fuzz::{MOST_SAID, within};

/// What a text may cost: its longest label without escapes, and the adapters that are kept.
fn enough(bytes: usize) -> usize {
    65_536 + bytes * 4
}

fn check(reading: &Reading, lines: usize) {
    for number in [reading.running, reading.waiting].into_iter().flatten() {
        assert!(number.is_finite() && number >= 0.0, "{number}");
    }
    for number in [reading.prefix_queries, reading.prefix_hits].into_iter().flatten() {
        assert!(number.is_finite() && number >= 0.0, "{number}");
    }
    assert!(reading.kv_usage.is_none_or(|share| (0.0..=1.0).contains(&share)));
    assert!(reading.block_size != Some(0) && reading.blocks != Some(0));
    for list in reading.lora.iter().flat_map(|lora| [&lora.running, &lora.waiting]) {
        assert!(list.len() <= MAX_ADAPTERS);
        assert!(list.iter().all(|name| (1..=MAX_ADAPTER_NAME).contains(&name.len())));
    }
    assert!(reading.unread <= lines as u64);
}

/// Names like vLLM's own, as a configuration would have them.
fn custom() -> Mapping {
    let vllm = |name: &str| format!("vllm:{name}");
    let label =
        |label: &str| Some(Number { series: vllm("cache_config_info"), label: Some(label.to_owned()) });
    let names = Names {
        running: Some(vllm("num_requests_running")),
        waiting: Some(vllm("num_requests_waiting")),
        kv_usage: Some(Usage::Share(vllm("kv_cache_usage_perc"))),
        block_size: label("block_size"),
        blocks: label("num_gpu_blocks"),
        lora: Some(vllm("lora_requests_info")),
    };
    Mapping::custom(&names).expect("they are names")
}

fuzz_target!(|bytes: &[u8]| {
    let lines = bytes.split(|byte| *byte == b'\n').count();
    let mappings = [Mapping::vllm(), Mapping::sglang(), Mapping::tensorrt_llm(), Mapping::max(), custom()];
    let readings = mappings.each_ref().map(|mapping| within(enough(bytes.len()), || read(bytes, mapping)));
    readings.iter().flatten().for_each(|reading| check(reading, lines));
    // The same names mean the same, whoever gave them.
    if let [Some(own), .., Some(custom)] = &readings {
        assert_eq!((own.running, own.waiting, &own.lora), (custom.running, custom.waiting, &custom.lora));
        assert_eq!((own.block_size, own.blocks), (custom.block_size, custom.blocks));
    }
    // A line that is none changes nothing else.
    let more = read(&[b"?\n", bytes].concat(), &mappings[0]);
    let mut expected = readings[0].clone();
    expected.iter_mut().for_each(|reading| reading.unread += 1);
    assert_eq!(more, expected);

    let samples = within(0, || {
        let mut samples = Samples::new(bytes);
        samples.by_ref().count() as u64 + samples.unread()
    });
    assert!(samples <= lines as u64);

    if let Some(reading) = within(enough(bytes.len()), || orca::read(bytes)) {
        check(&reading, bytes.len());
    }
    // A configuration isn't hostile, but what is wrong in it is said.
    if let Ok(text) = std::str::from_utf8(bytes) {
        let names = Names { running: Some(text.to_owned()), ..Names::default() };
        if let Err(why) = Mapping::custom(&names) {
            assert!(why.len() <= 4 * MOST_SAID, "{} bytes are said", why.len());
        }
    }
});
