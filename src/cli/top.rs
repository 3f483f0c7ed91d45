//! `picolet top pods|node`: usage, in kubectl's columns. `picolet top disk`: bytes written to the disk.
//! `picolet top net`: bytes sent over the link.
//!
//! Source: kubectl `pkg/metricsutil/metrics_printer.go`.

use core::time::Duration;

use serde::Deserialize;

use super::{
    AgentClient, CliError,
    args::{CliWord, CliWords, unexpected_word},
    get::DEFAULT_NAMESPACE,
    live::{self, LiveRow, LiveTable},
    print_text, table,
};
use crate::{
    api::{Node, Quantity, link::LinkClass, order::OrderExt as _, quantity::human_bytes},
    logic::spelling::suggest_name,
    server::backend::LinkReport,
    sys::start,
};

/// Pause between two reads in milliseconds, if the agent was not asked lately: a rate needs two reads.
const BETWEEN_MS: i32 = 1200;

/// Figures taken from a kubelet's summary. An absent figure is not zero.
#[derive(Default, Deserialize)]
#[serde(default)]
struct UsageSummary {
    node: SummaryUsage,
    pods: Vec<SummaryUsage>,
}

/// Usage of the node, a pod or a container.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SummaryUsage {
    /// Name of a container.
    name: String,
    /// Name of the node.
    node_name: String,
    /// Name of a pod.
    pod_ref: PodRef,
    cpu: Option<SummaryCpu>,
    memory: SummaryMemory,
    /// Containers of a pod.
    containers: Vec<Self>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodRef {
    name: String,
    namespace: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SummaryCpu {
    usage_nano_cores: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SummaryMemory {
    working_set_bytes: Option<u64>,
}

#[derive(Default)]
struct TopCommand {
    kind: String,
    name: Option<String>,
    namespace: Option<String>,
    all_namespaces: bool,
    containers: bool,
    no_headers: bool,
    watch: bool,
    sort_by: Option<SortBy>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SortBy {
    Name,
    Cpu,
    Memory,
}

/// Time between two looks of `top -w`.
const EVERY: Duration = Duration::from_secs(2);

pub(super) fn run_top(mut words: CliWords) -> Result<(), CliError> {
    let mut top = TopCommand::default();
    while let Some(word) = words.next_word()? {
        match word {
            CliWord::Flag("namespace") => top.namespace = Some(words.flag_value()?),
            CliWord::Flag("all-namespaces") => top.all_namespaces = words.switch_value()?,
            CliWord::Flag("containers") => top.containers = words.switch_value()?,
            CliWord::Flag("no-headers") => top.no_headers = words.switch_value()?,
            CliWord::Flag("watch") => top.watch = words.switch_value()?,
            CliWord::Flag("sort-by") => top.sort_by = Some(parse_sort_by(&words.flag_value()?)?),
            CliWord::Value(value) if top.kind.is_empty() => top.kind = value,
            CliWord::Value(value) if top.name.is_none() => top.name = Some(value),
            other => return Err(unexpected_word(other)),
        }
    }
    let client = match top.watch {
        true => words.agent_client().with_patience(live::PATIENCE),
        false => words.agent_client(),
    };
    let look: ReadUsageFn = match top.kind.as_str() {
        "pod" | "pods" | "po" => read_pod_usage,
        "node" | "nodes" | "no" => read_node_usage,
        "disk" => read_disk_usage,
        "net" => read_link_usage,
        "" => {
            return Err(CliError::new(
                "you must say what to show: pods, node, disk or net",
            ));
        }
        other => {
            let mut known = ["pods", "node", "disk", "net"].into_iter();
            let meant = suggest_name(other, "", &mut known);
            return Err(CliError::new(format!(
                "cannot show {other:?}, only pods, node, disk and net{meant}"
            )));
        }
    };
    top.expect_flags_of_kind()?;
    if top.watch {
        let no_headers = top.no_headers;
        return live::watch_table(EVERY, no_headers, Box::new(move || look(&client, &top)));
    }
    let seen = look(&client, &top)?;
    let mut notes = seen.notes.into_iter();
    if seen.rows.is_empty()
        && let Some(nothing) = notes.next()
    {
        return Err(CliError::new(nothing));
    }
    let rows: Vec<_> = seen.rows.into_iter().map(|row| row.cells).collect();
    print_text(&table::render_table(&seen.header, &rows, top.no_headers))?;
    notes.try_for_each(|note| print_text(&format!("{note}\n")))
}

/// Function that reads the figures of a kind.
type ReadUsageFn = fn(&AgentClient, &TopCommand) -> Result<LiveTable, CliError>;

impl TopCommand {
    /// Checks that a kind other than pods has no flags and names of pods.
    fn expect_flags_of_kind(&self) -> Result<(), CliError> {
        let is_of_pods = self.namespace.is_some()
            || self.all_namespaces
            || self.containers
            || self.sort_by.is_some()
            || self.name.is_some() && !self.kind.starts_with("no");
        if self.kind.starts_with("po") || !is_of_pods {
            return Ok(());
        }
        Err(CliError::new(format!(
            "top {}: takes no name of a pod, and none of --namespace, --all-namespaces, --containers and --sort-by: \
             remove them, or use 'top pods'",
            self.kind
        )))
    }
}

fn parse_sort_by(text: &str) -> Result<SortBy, CliError> {
    match text {
        "name" => Ok(SortBy::Name),
        "cpu" => Ok(SortBy::Cpu),
        "memory" => Ok(SortBy::Memory),
        other => Err(CliError::new(format!(
            "--sort-by {other:?}: only cpu, memory and name are known"
        ))),
    }
}

/// Reads the summary with rates. A container that started a moment ago may have none.
fn read_summary(client: &AgentClient) -> Result<UsageSummary, CliError> {
    let read = || client.fetch_typed("/stats/summary?only_cpu_and_memory=true");
    let first = read()?;
    if has_rates(&first) {
        return Ok(first);
    }
    // Signals go to the thread that has the terminal. If one cuts this wait short, the rate is of less time.
    let _ = start::poll_fds(&mut [], BETWEEN_MS);
    read()
}

fn has_rates(summary: &UsageSummary) -> bool {
    let mut all = summary.pods.iter().chain([&summary.node]);
    all.all(|of| {
        let cpu = of.cpu.as_ref();
        cpu.is_none_or(|cpu| cpu.usage_nano_cores.is_some())
    })
}

impl SummaryUsage {
    /// Returns thousandths of processors, rounded up as kubectl does, and bytes; `None`: not both are known.
    fn cpu_and_memory(&self) -> Option<(u64, u64)> {
        let nano = self.cpu.as_ref()?.usage_nano_cores?;
        let bytes = self.memory.working_set_bytes?;
        Some((nano.div_ceil(1_000_000), bytes))
    }
}

fn usage_cells((milli, bytes): (u64, u64)) -> [String; 2] {
    [format!("{milli}m"), format!("{}Mi", bytes >> 20)]
}

fn read_pod_usage(client: &AgentClient, top: &TopCommand) -> Result<LiveTable, CliError> {
    let (header, rows) = pod_usage_rows(&read_summary(client)?, top);
    let nothing = || match &top.name {
        None => "no figures of pods".into(),
        Some(name) => format!("no figures of pod \"{name}\": does it run?"),
    };
    Ok(LiveTable {
        notes: rows.is_empty().then(nothing).into_iter().collect(),
        header,
        rows,
    })
}

fn pod_usage_rows(summary: &UsageSummary, top: &TopCommand) -> (Vec<&'static str>, Vec<LiveRow>) {
    let namespace = top.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
    let mut header = Vec::new();
    if top.all_namespaces {
        header.push("NAMESPACE");
    }
    header.extend(match top.containers {
        true => &["POD", "NAME"][..],
        false => &["NAME"],
    });
    let names = header.len();
    header.extend(["CPU(cores)", "MEMORY(bytes)"]);
    let mut rows = Vec::new();
    for pod in &summary.pods {
        let PodRef {
            name,
            namespace: of,
        } = &pod.pod_ref;
        if top.name.as_ref().is_some_and(|wanted| wanted != name)
            || !top.all_namespaces && of != namespace
        {
            continue;
        }
        let parts: &[SummaryUsage] = match top.containers {
            true => &pod.containers,
            // A pod without a cgroup of its own is the sum of its containers, which a single line does not show.
            false => core::slice::from_ref(pod),
        };
        for part in parts {
            let Some(figures) = part.cpu_and_memory() else {
                continue;
            };
            let mut row = Vec::new();
            if top.all_namespaces {
                row.push(of.clone());
            }
            row.push(name.clone());
            if top.containers {
                row.push(part.name.clone());
            }
            row.extend(usage_cells(figures));
            rows.push((figures, LiveRow::with_name_cells(row, names)));
        }
    }
    let default = if top.watch { SortBy::Cpu } else { SortBy::Name };
    // The greatest first; the names decide between equal ones.
    let most = |(cpu, memory): (u64, u64)| match top.sort_by.unwrap_or(default) {
        SortBy::Name => 0,
        SortBy::Cpu => cpu,
        SortBy::Memory => memory,
    };
    rows.stable_sort_by(|(a, left), (b, right)| {
        let most = most(*b).cmp(&most(*a));
        most.then_with(|| left.cells.cmp(&right.cells))
    });
    (header, rows.into_iter().map(|(_, row)| row).collect())
}

fn read_node_usage(client: &AgentClient, top: &TopCommand) -> Result<LiveTable, CliError> {
    let summary = read_summary(client)?;
    let node: Node = client.fetch_typed("/node")?;
    if let Some(other) = top.name.as_ref().filter(|n| **n != node.metadata.name) {
        let text = format!("nodes \"{other}\" not found");
        return Err(CliError::from_server(404, &text));
    }
    let row = node_usage_row(&summary.node, &node)
        .ok_or_else(|| CliError::new("no figures of the node"))?;
    Ok(LiveTable {
        header: ["NAME", "CPU(cores)", "CPU(%)", "MEMORY(bytes)", "MEMORY(%)"].to_vec(),
        rows: vec![LiveRow::with_name_cells(row, 1)],
        notes: Vec::new(),
    })
}

fn read_link_usage(client: &AgentClient, _: &TopCommand) -> Result<LiveTable, CliError> {
    let link = client.fetch_typed("/link")?;
    Ok(LiveTable {
        header: ["CLASS", "RECEIVED", "SENT"].to_vec(),
        rows: link_usage_rows(&link),
        notes: link.cost.into_iter().chain(link.budget).collect(),
    })
}

/// Makes a line for each class with traffic, and one for all.
fn link_usage_rows(link: &LinkReport) -> Vec<LiveRow> {
    let of = |name: &str, both: [u64; 2]| {
        let mut cells = vec![name.to_owned()];
        cells.extend(both.map(human_bytes));
        LiveRow::with_name_cells(cells, 1)
    };
    let classes = LinkClass::NAMES.iter().zip(link.bytes.0);
    let sum = |way: usize| link.bytes.0.iter().map(|both| both[way]).sum();
    let rows = classes.filter(|(_, both)| both.iter().any(|n| *n > 0));
    let rows = rows.map(|(name, both)| of(name, both));
    rows.chain([of("all", [sum(0), sum(1)])]).collect()
}

fn node_usage_row(stats: &SummaryUsage, node: &Node) -> Option<Vec<String>> {
    let (milli, bytes) = stats.cpu_and_memory()?;
    let allocatable = |name: &str, amount: fn(&Quantity) -> i64| {
        let quantity = node.status.allocatable.get(name)?;
        u64::try_from(amount(quantity)).ok().filter(|n| *n > 0)
    };
    let percent = |used: u64, of: Option<u64>| {
        of.map_or_else(
            || "<unknown>".into(),
            |of| format!("{}%", u128::from(used) * 100 / u128::from(of)),
        )
    };
    let [cpu, memory] = usage_cells((milli, bytes));
    Some(vec![
        stats.node_name.clone(),
        cpu,
        percent(milli, allocatable("cpu", Quantity::milli_value)),
        memory,
        percent(bytes, allocatable("memory", Quantity::value)),
    ])
}

/// A row of `top disk`: a writer to the disk of the root directory, or the disk itself.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct DiskWriter {
    name: String,
    written_bytes: Option<u64>,
    seconds: Option<u64>,
    day_bytes: Option<u64>,
    used_life_percent: Option<u8>,
}

fn read_disk_usage(client: &AgentClient, _: &TopCommand) -> Result<LiveTable, CliError> {
    let writers: Vec<DiskWriter> = client.fetch_typed("/stats/disk")?;
    Ok(LiveTable {
        header: ["NAME", "WRITTEN(bytes)", "IN", "A-DAY(bytes)", "LIFE(%)"].to_vec(),
        rows: writers
            .iter()
            .map(|w| LiveRow::with_name_cells(writer_row(w), 1))
            .collect(),
        notes: Vec::new(),
    })
}

/// Makes a row of `top disk`. `LIFE(%)`: upper bound of the used life of the disk.
fn writer_row(writer: &DiskWriter) -> Vec<String> {
    let known = |text: Option<String>| text.unwrap_or_else(|| "<unknown>".into());
    let mib = |bytes: u64| format!("{}Mi", bytes.div_ceil(1 << 20));
    let time = |seconds: u64| table::human_duration(i64::try_from(seconds).unwrap_or(i64::MAX));
    let life = writer.used_life_percent.map(|used| format!("{used}%"));
    vec![
        writer.name.clone(),
        known(writer.written_bytes.map(mib)),
        known(writer.seconds.map(time)),
        known(writer.day_bytes.map(mib)),
        life.unwrap_or_default(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
        crate::api::strict::typed_from_value(&value).expect("an answer")
    }

    #[test]
    fn writers_have_a_line_each() {
        // WEAR-06
        let row = |value: serde_json::Value| writer_row(&read(value));
        let agent =
            json!({"name": "agent", "writtenBytes": 1, "seconds": 7200, "dayBytes": 3 << 20});
        assert_eq!(row(agent), ["agent", "1Mi", "120m", "3Mi", ""]);
        let disk = json!({"name": "mmcblk0", "writtenBytes": 0, "seconds": 59, "dayBytes": 0, "usedLifePercent": 90});
        assert_eq!(row(disk), ["mmcblk0", "0Mi", "59s", "0Mi", "90%"]);
        let unknown = ["pods", "<unknown>", "<unknown>", "<unknown>", ""];
        assert_eq!(row(json!({"name": "pods"})), unknown);
    }

    #[test]
    fn rows_are_kubectls() {
        let figures = |nano: u64, mib: u64| json!({"cpu": {"usageNanoCores": nano}, "memory": {"workingSetBytes": mib << 20}});
        let mut pod = figures(250_000_001, 34);
        pod["podRef"] = json!({"name": "web", "namespace": "default"});
        let mut container = figures(1, 3);
        container["name"] = "app".into();
        pod["containers"] = json!([container, {"name": "new"}]);
        let mut other = figures(0, 64);
        other["podRef"] = json!({"name": "dns", "namespace": "kube-system"});
        let summary: UsageSummary = read(json!({"pods": [pod, other]}));
        let rows = |top: &TopCommand| -> Vec<Vec<String>> {
            let (_, rows) = pod_usage_rows(&summary, top);
            rows.into_iter().map(|row| row.cells).collect()
        };
        let mut top = TopCommand::default();
        assert_eq!(rows(&top), [["web", "251m", "34Mi"]]);
        top.all_namespaces = true;
        assert_eq!(
            rows(&top),
            [
                ["default", "web", "251m", "34Mi"],
                ["kube-system", "dns", "0m", "64Mi"]
            ]
        );
        top.containers = true;
        assert_eq!(rows(&top), [["default", "web", "app", "1m", "3Mi"]]);
        top.containers = false;
        for (by, first) in [
            (SortBy::Memory, "dns"),
            (SortBy::Cpu, "web"),
            (SortBy::Name, "web"),
        ] {
            top.sort_by = Some(by);
            assert_eq!(rows(&top)[0][1], first, "{by:?}");
        }
        top.name = Some("none".into());
        assert!(rows(&top).is_empty());
        let mut node = figures(1_500_000_000, 512);
        node["nodeName"] = "pi".into();
        let object = json!({"status": {"allocatable": {"cpu": "4", "memory": "1Gi"}}});
        let mut link = LinkReport::default();
        link.bytes.0[LinkClass::Heartbeat as usize] = [1500, 700];
        link.bytes.0[LinkClass::Image as usize] = [4_500_000, 0];
        let rows: Vec<_> = link_usage_rows(&link)
            .into_iter()
            .map(|row| row.cells)
            .collect();
        assert_eq!(
            rows,
            [
                ["heartbeat", "1.5kB", "700B"],
                ["image", "4.5MB", "0B"],
                ["all", "4.5MB", "700B"]
            ]
        );
        let row = node_usage_row(&read(node), &read(object)).expect("figures");
        assert_eq!(row, ["pi", "1500m", "37%", "512Mi", "50%"]);
    }
}
