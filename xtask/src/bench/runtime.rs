//! `bench --runtime containerd`: what the agent itself takes where a containerd runs the pods. The kubelet is not measured
//! here: no Debian package has it. Beside the agent's figures stand those of containerd and its shims, which a kubelet has too.

use super::{
    CROWD, SETTLE,
    account::Account,
    aim, at_rest, crowd, gone, mib, proc,
    table::{Table, ms},
};
use crate::{Failure, containerd::Containerd, stage::Stage, wait::pass};

pub(super) fn run_on(mut stage: Stage) -> Result<(), Failure> {
    let containerd = stage.use_containerd()?;
    let measured = measure(&mut stage, &containerd);
    // Pods end while their runtime is there.
    drop(stage);
    drop(containerd);
    let table = measured?;
    table.print();
    println!("\nThe kubelet was not measured: it is not on this machine.");
    match table.missed().as_slice() {
        [] => Ok(()),
        missed => Err(format!("aims missed: {}", missed.join("; ")).into()),
    }
}

fn measure(stage: &mut Stage, containerd: &Containerd) -> Result<Table, Failure> {
    println!("Measuring picolet on containerd");
    let account = Account::open(&format!("picolet-{}", stage.mark))?;
    stage.start_agent()?;
    account.adopt("agent", stage.agent_pid().ok_or("no agent runs")?)?;
    pass(SETTLE);
    let empty = at_rest(stage, &account)?;
    let up = crowd(stage, &account)?;
    pass(SETTLE);
    let full = at_rest(stage, &account)?;
    let daemon = proc::memory(containerd.pid())?.pss;
    let shims = containerd.shims();
    let mut of_shims = 0;
    for pid in &shims {
        of_shims += proc::memory(u32::try_from(pid.as_raw())?)?.pss;
    }
    let down = gone(stage, &account)?;

    let mut table = Table::default();
    let pss = |kib: u64| format!("{:.1} MiB", mib(kib));
    table.show("agent without pods, PSS", pss(empty.agent_pss));
    let what = format!("agent with {CROWD} pods, PSS");
    table.at_most(what, mib(full.agent_pss), aim::BESIDE_RUNTIME_MIB, "MiB");
    let each_second = |ms: f64| format!("{ms:.2} ms");
    table.show(
        "agent at rest without pods, processor a second",
        each_second(empty.cpu_ms),
    );
    table.show(
        format!("agent at rest with {CROWD} pods, processor a second"),
        each_second(full.cpu_ms),
    );
    table.show("containerd itself, PSS", pss(daemon));
    table.show(format!("its {} shims, PSS", shims.len()), pss(of_shims));
    table.show(
        format!("{CROWD} pods at once: all Running / all gone"),
        format!("{:.0} / {:.0} ms", ms(up), ms(down)),
    );
    stage.stop_all()?;
    stage.dismantle()?;
    Ok(table)
}
