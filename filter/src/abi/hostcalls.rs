//! [`EnvoyHost`]: the host over raw proxy-wasm hostcalls.
//!
//! The SDK's wrappers panic on a status that they don't expect, and a panic takes down every stream of the worker
//! thread. So the functions are declared here once more, and every status but success becomes a [`HostError`].
#![allow(unsafe_code)]

use crate::host::*;
use std::ptr::null_mut;
use std::time::Duration;

#[link(wasm_import_module = "env")]
unsafe extern "C" {
    fn proxy_log(level: u32, message: *const u8, len: usize) -> u32;
    fn proxy_get_current_time_nanoseconds(time: *mut u64) -> u32;
    fn proxy_set_tick_period_milliseconds(period: u32) -> u32;
    fn proxy_get_buffer_bytes(
        kind: u32,
        start: usize,
        max: usize,
        value: *mut *mut u8,
        value_len: *mut usize,
    ) -> u32;
    fn proxy_set_buffer_bytes(
        kind: u32,
        start: usize,
        size: usize,
        value: *const u8,
        value_len: usize,
    ) -> u32;
    fn proxy_close_stream(stream_type: u32) -> u32;
    fn proxy_get_header_map_pairs(map: u32, value: *mut *mut u8, value_len: *mut usize) -> u32;
    fn proxy_get_header_map_value(
        map: u32,
        name: *const u8,
        name_len: usize,
        value: *mut *mut u8,
        value_len: *mut usize,
    ) -> u32;
    fn proxy_replace_header_map_value(
        map: u32,
        name: *const u8,
        name_len: usize,
        value: *const u8,
        value_len: usize,
    ) -> u32;
    fn proxy_remove_header_map_value(map: u32, name: *const u8, name_len: usize) -> u32;
    fn proxy_get_property(
        path: *const u8,
        path_len: usize,
        value: *mut *mut u8,
        value_len: *mut usize,
    ) -> u32;
    fn proxy_set_property(path: *const u8, path_len: usize, value: *const u8, value_len: usize) -> u32;
    fn proxy_get_shared_data(
        key: *const u8,
        key_len: usize,
        value: *mut *mut u8,
        value_len: *mut usize,
        cas: *mut u32,
    ) -> u32;
    fn proxy_set_shared_data(
        key: *const u8,
        key_len: usize,
        value: *const u8,
        value_len: usize,
        cas: u32,
    ) -> u32;
    fn proxy_define_metric(kind: u32, name: *const u8, name_len: usize, id: *mut u32) -> u32;
    fn proxy_increment_metric(id: u32, by: i64) -> u32;
    fn proxy_record_metric(id: u32, value: u64) -> u32;
    fn proxy_set_effective_context(context: u32) -> u32;
    fn proxy_continue_stream(stream_type: u32) -> u32;
    fn proxy_send_local_response(
        status: u32,
        details: *const u8,
        details_len: usize,
        body: *const u8,
        body_len: usize,
        headers: *const u8,
        headers_len: usize,
        grpc_status: i32,
    ) -> u32;
}

const OK: u32 = 0;
const NOT_FOUND: u32 = 1;
const CAS_MISMATCH: u32 = 8;
const REQUEST_BODY: u32 = 0;
const RESPONSE_BODY: u32 = 1;
const DOWNSTREAM_DATA: u32 = 2;
const ANSWER_BODY: u32 = 4;
const PLUGIN_CONFIGURATION: u32 = 7;
const REQUEST_STREAM: u32 = 0;
const RESPONSE_STREAM: u32 = 1;
const DOWNSTREAM: u32 = 2;
const NO_GRPC_STATUS: i32 = -1;

/// Envoy, as seen from one VM.
#[derive(Debug, Clone, Copy, Default)]
pub struct EnvoyHost;

fn check(call: &'static str, status: u32) -> HostResult<()> {
    match status {
        OK => Ok(()),
        status => Err(HostError { call, status }),
    }
}

/// Bytes that the host allocated through our `malloc` export and hands over.
///
/// `None` where the host answered "not found"; an empty vector where it answered with no bytes.
fn receive(
    call: &'static str,
    ask: impl FnOnce(*mut *mut u8, *mut usize) -> u32,
) -> HostResult<Option<Vec<u8>>> {
    let (mut data, mut len) = (null_mut(), 0);
    match ask(&mut data, &mut len) {
        OK if data.is_null() => Ok(Some(Vec::new())),
        // SAFETY: the host got this memory from the SDK's `malloc` export, a boxed slice of exactly `len` bytes.
        OK => Ok(Some(unsafe { Vec::from_raw_parts(data, len, len) })),
        NOT_FOUND => Ok(None),
        status => Err(HostError { call, status }),
    }
}

fn map_type(map: Headers) -> u32 {
    match map {
        Headers::Request => 0,
        Headers::Response => 2,
        Headers::Answer => 6,
    }
}

impl SharedData for EnvoyHost {
    fn shared_get(&self, key: &str) -> HostResult<Option<Versioned>> {
        let mut cas = 0;
        let value = receive("get_shared_data", |data, len| unsafe {
            proxy_get_shared_data(key.as_ptr(), key.len(), data, len, &mut cas)
        })?;
        Ok(value.zip(Cas::new(cas)).map(|(value, cas)| Versioned { value, cas }))
    }

    fn shared_set(&self, key: &str, value: &[u8], expect: Expect) -> HostResult<Write> {
        // 0 writes whatever is there. On a key that exists a version that was never given out always conflicts, and
        // on one that doesn't every version succeeds: so it means "only if absent".
        let cas = match expect {
            Expect::Anything => 0,
            Expect::Absent => u32::MAX,
            Expect::Version(cas) => cas.get(),
        };
        let status =
            unsafe { proxy_set_shared_data(key.as_ptr(), key.len(), value.as_ptr(), value.len(), cas) };
        match status {
            OK => Ok(Write::Done),
            CAS_MISMATCH => Ok(Write::Conflict),
            status => Err(HostError { call: "set_shared_data", status }),
        }
    }
}

impl Host for EnvoyHost {
    fn now(&self) -> Duration {
        let mut nanoseconds = 0;
        unsafe { proxy_get_current_time_nanoseconds(&mut nanoseconds) };
        Duration::from_nanos(nanoseconds)
    }

    fn log(&self, level: Level, message: &str) {
        let level = match level {
            Level::Debug => 1,
            Level::Info => 2,
            Level::Warn => 3,
            Level::Error => 4,
        };
        let message = entry_of_log(message);
        unsafe { proxy_log(level, message.as_ptr(), message.len()) };
    }

    fn set_tick_period(&self, period: Duration) -> HostResult<()> {
        let milliseconds = u32::try_from(period.as_millis()).unwrap_or(u32::MAX);
        check("set_tick_period", unsafe { proxy_set_tick_period_milliseconds(milliseconds) })
    }

    fn plugin_configuration(&self) -> HostResult<Vec<u8>> {
        let bytes = receive("get_plugin_configuration", |data, len| unsafe {
            proxy_get_buffer_bytes(PLUGIN_CONFIGURATION, 0, usize::MAX, data, len)
        })?;
        Ok(bytes.unwrap_or_default())
    }

    fn define_metric(&self, kind: MetricKind, name: &str) -> HostResult<MetricId> {
        let kind = match kind {
            MetricKind::Counter => 0,
            MetricKind::Gauge => 1,
            MetricKind::Histogram => 2,
        };
        let mut id = 0;
        let status = unsafe { proxy_define_metric(kind, name.as_ptr(), name.len(), &mut id) };
        check("define_metric", status).map(|()| MetricId(id))
    }

    fn increment_metric(&self, id: MetricId, by: i64) -> HostResult<()> {
        check("increment_metric", unsafe { proxy_increment_metric(id.0, by) })
    }

    fn record_metric(&self, id: MetricId, value: u64) -> HostResult<()> {
        check("record_metric", unsafe { proxy_record_metric(id.0, value) })
    }

    fn property(&self, path: &[&str]) -> HostResult<Option<Vec<u8>>> {
        let path = path.join("\0");
        receive("get_property", |data, len| unsafe {
            proxy_get_property(path.as_ptr(), path.len(), data, len)
        })
    }

    fn set_filter_state(&self, name: &str, value: &[u8]) -> HostResult<()> {
        let status = unsafe { proxy_set_property(name.as_ptr(), name.len(), value.as_ptr(), value.len()) };
        check("set_property", status)
    }

    fn headers(&self, map: Headers) -> HostResult<HeaderMap> {
        let wire = receive("get_header_map_pairs", |data, len| unsafe {
            proxy_get_header_map_pairs(map_type(map), data, len)
        })?;
        Ok(HeaderMap::from_wire(wire.unwrap_or_default()))
    }

    fn header(&self, map: Headers, name: &str) -> HostResult<Option<Vec<u8>>> {
        receive("get_header_map_value", |data, len| unsafe {
            proxy_get_header_map_value(map_type(map), name.as_ptr(), name.len(), data, len)
        })
    }

    fn set_header(&self, map: Headers, name: &str, value: &str) -> HostResult<()> {
        let status = unsafe {
            proxy_replace_header_map_value(
                map_type(map),
                name.as_ptr(),
                name.len(),
                value.as_ptr(),
                value.len(),
            )
        };
        check("replace_header_map_value", status)
    }

    fn remove_header(&self, map: Headers, name: &str) -> HostResult<()> {
        let status = unsafe { proxy_remove_header_map_value(map_type(map), name.as_ptr(), name.len()) };
        check("remove_header_map_value", status)
    }

    fn request_body(&self, max: usize) -> HostResult<Vec<u8>> {
        let bytes = receive("get_request_body", |data, len| unsafe {
            proxy_get_buffer_bytes(REQUEST_BODY, 0, max, data, len)
        })?;
        Ok(bytes.unwrap_or_default())
    }

    fn response_body(&self, start: usize, max: usize) -> HostResult<Vec<u8>> {
        let bytes = receive("get_response_body", |data, len| unsafe {
            proxy_get_buffer_bytes(RESPONSE_BODY, start, max, data, len)
        })?;
        Ok(bytes.unwrap_or_default())
    }

    fn replace_request_body(&self, body: &[u8], length: Length) -> HostResult<()> {
        let (data, len) = (body.as_ptr(), body.len());
        let replace = || {
            let status = unsafe { proxy_set_buffer_bytes(REQUEST_BODY, 0, usize::MAX, data, len) };
            check("set_request_body", status)
        };
        if length == Length::Removed {
            return replace();
        }
        // A body that is longer than its headers say runs into the next request of its connection: whatever fails, they never
        // say another length than the body has.
        self.remove_header(Headers::Request, "content-length")?;
        replace()?;
        self.set_header(Headers::Request, "content-length", &len.to_string())
    }

    fn call(
        &self,
        cluster: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        timeout: Duration,
    ) -> HostResult<u32> {
        // The SDK's own wrapper, as the only one: it panics on an answer to a call that it didn't make. Of statuses it knows
        // all that Envoy gives here.
        let body = (!body.is_empty()).then_some(body);
        proxy_wasm::hostcalls::dispatch_http_call(cluster, headers.to_vec(), body, Vec::new(), timeout)
            .map_err(|status| HostError { call: "http_call", status: status as u32 })
    }

    fn answer_body(&self, max: usize) -> HostResult<Vec<u8>> {
        let bytes = receive("get_answer_body", |data, len| unsafe {
            proxy_get_buffer_bytes(ANSWER_BODY, 0, max, data, len)
        })?;
        Ok(bytes.unwrap_or_default())
    }

    fn downstream_data(&self, max: usize) -> HostResult<Vec<u8>> {
        let bytes = receive("get_downstream_data", |data, len| unsafe {
            proxy_get_buffer_bytes(DOWNSTREAM_DATA, 0, max, data, len)
        })?;
        Ok(bytes.unwrap_or_default())
    }

    fn replace_downstream_data(&self, size: usize, data: &[u8]) -> HostResult<()> {
        let status = unsafe { proxy_set_buffer_bytes(DOWNSTREAM_DATA, 0, size, data.as_ptr(), data.len()) };
        check("set_downstream_data", status)
    }

    fn close_connection(&self) -> HostResult<()> {
        check("close_stream", unsafe { proxy_close_stream(DOWNSTREAM) })
    }

    fn set_effective_context(&self, stream: u32) -> HostResult<()> {
        check("set_effective_context", unsafe { proxy_set_effective_context(stream) })
    }

    fn resume_request(&self) -> HostResult<()> {
        check("continue_stream", unsafe { proxy_continue_stream(REQUEST_STREAM) })
    }

    fn resume_response(&self) -> HostResult<()> {
        check("continue_stream", unsafe { proxy_continue_stream(RESPONSE_STREAM) })
    }

    fn reset_request(&self) -> HostResult<()> {
        check("close_stream", unsafe { proxy_close_stream(REQUEST_STREAM) })
    }

    fn respond(&self, status: u32, headers: &[(&str, &str)], body: &[u8], details: &str) -> HostResult<()> {
        let headers =
            HeaderMap::to_wire(headers.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())));
        let status = unsafe {
            proxy_send_local_response(
                status,
                details.as_ptr(),
                details.len(),
                body.as_ptr(),
                body.len(),
                headers.as_ptr(),
                headers.len(),
                NO_GRPC_STATUS,
            )
        };
        check("send_local_response", status)
    }
}
