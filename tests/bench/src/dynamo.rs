//! NVIDIA Dynamo's frontend, which tokenizes too, before simulated engines of its own.

use crate::router::{Router, pin};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use warmpath_tests::{Process, Request, temporary_dir, wait_for};

/// Not the model's, but nothing is computed with it.
const CONFIG: &str = r#"{"architectures":["Qwen3ForCausalLM"],"model_type":"qwen3","hidden_size":128,"num_hidden_layers":2,
"num_attention_heads":2,"num_key_value_heads":2,"head_dim":64,"intermediate_size":256,"max_position_embeddings":1048576,
"vocab_size":151936,"bos_token_id":151643,"eos_token_id":151645,"torch_dtype":"bfloat16"}"#;

/// Starts the frontend of a Python environment that has it, with a vocabulary and as many engines as there are pods elsewhere.
pub fn start(python: &Path, vocabulary: &Path, engines: usize) -> Router {
    let model = temporary_dir("model").expect("a directory can be made");
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(vocabulary.join(name), model.join(name)).expect("the vocabulary can be copied");
    }
    std::fs::write(model.join("config.json"), CONFIG).expect("a file can be written");
    let discovery = temporary_dir("discovery").expect("a directory can be made");
    let port = TcpListener::bind("127.0.0.1:0")
        .and_then(|socket| socket.local_addr())
        .expect("a port is free")
        .port();
    let command = |module: &str| {
        let mut command = Command::new(python);
        let own =
            [("DYN_DISCOVERY_BACKEND", "file"), ("DYN_REQUEST_PLANE", "tcp"), ("DYN_EVENT_PLANE", "zmq")];
        command.args(["-m", module]).envs(own).env("DYN_FILE_KV", &discovery).env("HF_HUB_OFFLINE", "1");
        command
    };
    let mut frontend = command("dynamo.frontend");
    frontend.args(["--http-host", "127.0.0.1", "--http-port", &port.to_string()]);
    frontend.args(["--router-mode", "kv", "--tokenizer", "fastokens"]);
    let frontend = Process::start("dynamo.frontend", frontend, &discovery, &[]);
    let mut mocker = command("dynamo.mocker");
    mocker.arg("--model-path").arg(&model).args([
        "--model-name",
        "bench",
        "--num-workers",
        &engines.to_string(),
    ]);
    mocker.args(["--speedup-ratio", "100000", "--block-size", "32", "--num-gpu-blocks-override", "100000"]);
    mocker.args(["--max-model-len", "1000000"]);
    let mocker = Process::start("dynamo.mocker", mocker, &model, &[]);
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let hello = serde_json::json!({"model": "bench", "max_tokens": 1, "messages": [{"role": "user", "content": "hello"}]});
    wait_for("Dynamo to answer", || {
        let up = std::net::TcpStream::connect(address).is_ok();
        (up && Request::json("/v1/chat/completions", &hello).send(address).status == 200).then_some(())
    });
    pin(mocker.id(), 1);
    Router::other("dynamo", address, frontend, mocker)
}
