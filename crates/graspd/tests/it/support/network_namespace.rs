//! Network namespaces, to test addresses that this machine does not have.

use std::process::Command;

/// Set for tests that run inside a network namespace.
const VARIABLE: &str = "TEST_NETWORK_NAMESPACE";

/// Whether the test runs in a network namespace of its own, which no packet can leave, and whose loopback interface has these addresses too. If not, runs
/// the test with this name again inside one and asserts that it passes there; the caller must then return. Without the
/// permission to create namespaces nothing is tested.
pub fn is_in_network_namespace(test: &str, addresses: &[&str]) -> bool {
    if std::env::var_os(VARIABLE).is_some() {
        return true;
    }
    let in_namespace = |program: &str, arguments: &[&str]| {
        let add: String = addresses.iter().map(|address| format!("ip address add {address} dev lo && ")).collect();
        let set_up = format!("ip link set lo up && {add}exec \"$@\"");
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--net", "sh", "-c", &set_up, "sh", program]).args(arguments);
        command
    };
    if !in_namespace("true", &[]).output().is_ok_and(|output| output.status.success()) {
        eprintln!("network namespaces are not permitted: the test is skipped");
        return false;
    }
    let program = std::env::current_exe().expect("cannot find the test program");
    let program = program.to_str().expect("path is not UTF-8");
    let arguments = ["--exact", test, "--nocapture", "--include-ignored"];
    let output = in_namespace(program, &arguments).env(VARIABLE, "1").output().expect("cannot run unshare");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    false
}
