//! Runs simulations by hand: see the documentation of the library.

use std::io::Write;
use std::process::{Command, ExitCode, Stdio};

use grasp_sim::fetch::FetchWorld;
use grasp_sim::mutations::{self, Mutation};
use grasp_sim::simulation::parallel::{replay_command, run_parallel};
use grasp_sim::simulation::trace::Trace;
use grasp_sim::simulation::{World, run_seed};
use grasp_sim::sync::SyncWorld;

const USAGE: &str = "usage:
  grasp-sim sync|fetch SEED            replays a seed and prints what happens
  grasp-sim sync|fetch FIRST..END...   runs these seeds and prints violated invariants
  grasp-sim mutations [NAME...]        builds all mutations and checks that their seeds detect them
  grasp-sim mutations END [NAME...]    shows which of the first seeds detect each mutation";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let succeeded = match arguments[..] {
        ["sync", ref seeds @ ..] if !seeds.is_empty() => run::<SyncWorld>(seeds),
        ["fetch", ref seeds @ ..] if !seeds.is_empty() => run::<FetchWorld>(seeds),
        ["mutations", ref names @ ..] => match names.first().map(|first| first.parse()) {
            Some(Ok(end)) => check_mutations(&names[1..], Some(end)),
            _ => check_mutations(names, None),
        },
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    if succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Replays a seed, or runs ranges of seeds. Returns whether all invariants held.
fn run<W: World>(arguments: &[&str]) -> bool {
    if let [argument] = arguments
        && let Ok(seed) = argument.parse()
    {
        let report = run_seed::<W>(seed, Trace::printed());
        eprintln!("{} steps, {:?}", report.steps, report.counts);
        return report.violation.is_none();
    }
    let mut seeds: Vec<u64> = Vec::new();
    for argument in arguments {
        match argument.split_once("..").map(|(first, end)| (first.parse::<u64>(), end.parse::<u64>())) {
            Some((Ok(first), Ok(end))) => seeds.extend(first..end),
            _ => panic!("{argument} is no range of seeds\n{USAGE}"),
        }
    }
    let mut violations = 0;
    run_parallel(
        &seeds,
        |seed| run_seed::<W>(*seed, Trace::default()),
        |report| {
            if let Some(violation) = report.violation {
                violations += 1;
                print(&format!("seed {}, {} steps: {violation}", report.seed, report.steps));
            }
            false
        },
    );
    if violations > 0 {
        eprintln!("{violations} of {} seeds; replay one with: {}", seeds.len(), replay_command::<W>(seeds[0]));
    }
    violations == 0
}

/// Builds all mutations. Returns whether all that are named, or all, are detected by one of their seeds. If `end` is
/// given, prints instead which of the first seeds detect each of them.
fn check_mutations(names: &[&str], end: Option<u64>) -> bool {
    let all = mutations::all();
    let program = match mutations::build(&all) {
        Ok(program) => program,
        Err(error) => {
            eprintln!("{error}");
            return false;
        }
    };
    let selected: Vec<&Mutation> =
        all.iter().filter(|mutation| names.is_empty() || names.contains(&mutation.name.as_str())).collect();
    let seeds_of = |mutation: &Mutation| match end {
        Some(end) => vec![format!("0..{end}")],
        None => mutation.seeds.iter().map(|seed| format!("{seed}..{}", seed + 1)).collect(),
    };
    let run = |mutation: &Mutation, active: &str| {
        let mut command = Command::new(&program);
        command.arg(mutation.world).args(seeds_of(mutation)).env(mutations::ACTIVE, active).stderr(Stdio::null());
        let output = command.output().unwrap_or_else(|error| panic!("cannot run {}: {error}", program.display()));
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let mut undetected = Vec::new();
    run_parallel(
        &selected,
        // A seed that violates an invariant without the mutation proves nothing. A crash is no violation.
        |mutation| (*mutation, run(mutation, ""), run(mutation, &mutation.name)),
        |(mutation, (sound, _), (code, violations))| {
            print(&format!("{}: {}\n{violations}", mutation.name, mutation.bug));
            if sound != Some(0) || code != Some(1) {
                undetected.push(mutation.name.clone());
            }
            false
        },
    );
    if !undetected.is_empty() {
        eprintln!("not detected: {}", undetected.join(", "));
    }
    undetected.is_empty()
}

fn print(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
