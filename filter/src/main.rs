//! `warmpath check`, `schema` and `reference`, for people, their editors and their CI. The filter itself is the library.

#[cfg(not(target_arch = "wasm32"))]
fn main() -> std::process::ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    warmpath::check::run(&args, &mut std::io::stdout(), &mut std::io::stderr()).into()
}

#[cfg(target_arch = "wasm32")]
fn main() {}
