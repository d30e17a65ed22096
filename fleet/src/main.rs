//! The program; what it does is in the library of the same name.

fn main() -> std::process::ExitCode {
    postlink_fleet::cli::main()
}
