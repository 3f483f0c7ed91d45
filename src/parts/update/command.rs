//! `picolet update`: a look at a channel, and the upgrade that follows from it. The agent starts it at its time, as a
//! process of its own: an agent that looks for updates needs no more memory at rest than others.

use core::fmt;
use std::{
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{
    ConfiguredUpdates,
    channel::{ARTIFACT, ChannelError, ReleaseChannel},
    release::{self, ReleaseProof},
    running::RunningAgent,
    settings::{UpdateConfig, UpdateSource},
    switch::{self, ProgramPaths},
    upgrade::{
        TakeoverFailure, UpgradeOptions, file_error, must_be_root, stage_and_check,
        trial_under_way_error,
    },
};
use crate::{
    agent::images::read_pull_settings as pull_settings,
    api::WallTime,
    cli::{
        CliError,
        args::{CliWord, CliWords, unexpected_word},
        client::AgentClient,
        health, print_text, read_proxies,
    },
    config::AgentConfig,
    error::error_chain,
    image::pull::ArtifactReader,
    logic::update::{
        self, EXPIRED, LATER, MAX_MEMORY_BYTES, OfferVerdict, PodTransition, UpdateAttempt,
        UpdateCircumstances, UpdateMemory, UpdateOffer, upgrade::PATIENCE_S,
    },
    net::meter,
    parts,
    source::{DocumentLocation, WHOLE_TIMEOUT},
    sys::{clock, file, on_term},
};

/// Board that this program was made for, as releases call it.
const BOARD: &str = env!("PICOLET_BOARD");
/// Directory of the memory and of the fetched tarball, below the root directory.
const DIR: &str = "update";
/// File with the result of the last look, in the run directory.
const LAST: &str = "update";
/// Bytes read of that file.
const MAX_LAST_BYTES: u64 = 2048;

/// Caller of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UpdateRequester {
    /// The agent: an update only if it may be now.
    Agent,
    /// An operator who wants it now.
    Operator {
        /// Take the offer whatever earlier updates came to: also one that is installed, failed, or has a lower serial.
        force: bool,
    },
}

pub(super) fn run_update(mut words: CliWords) -> Result<(), CliError> {
    let (mut status, mut now, mut look, mut force, mut quiet) = (false, false, false, false, false);
    while let Some(word) = words.next_word()? {
        match word {
            CliWord::Flag("status") => status = words.switch_value()?,
            CliWord::Flag("now") => now = words.switch_value()?,
            CliWord::Flag("look") => look = words.switch_value()?,
            CliWord::Flag("force") => force = words.switch_value()?,
            CliWord::Flag("quiet") => quiet = words.switch_value()?,
            other => return Err(unexpected_word(other)),
        }
    }
    must_be_root()?;
    let who = match (status, now, look) {
        (_, false, false) if !force => None,
        (false, true, false) => Some(UpdateRequester::Operator { force }),
        (false, false, true) if !force => Some(UpdateRequester::Agent),
        _ => {
            return Err(CliError::new(
                "expected one of --status, --now [--force] and --look",
            ));
        }
    };
    let visit = ChannelVisit::new(words.agent_client());
    let Some(who) = who else {
        return visit?.print_status();
    };
    let visit = visit.map_err(look_error)?;
    let outcome = visit.look_for_update(who, quiet).map_err(look_error);
    visit.report_link_use();
    visit.keep_last_result(match &outcome {
        Ok(text) => text,
        Err(e) => e.bare_message(),
    });
    print_text(&format!("{}\n", outcome?))
}

/// Makes the error of a look without an update. A failure that may pass has to be made up for.
fn look_error(e: TakeoverFailure) -> CliError {
    if e.lasts {
        return e.why;
    }
    CliError {
        message: format!("no update now: {}", e.why.bare_message()),
        code: u8::try_from(LATER).unwrap_or(1),
    }
}

fn refused_update(why: impl fmt::Display) -> TakeoverFailure {
    TakeoverFailure::lasting(format!("update refused: {why}"))
}

fn passing_failure(why: impl fmt::Display) -> TakeoverFailure {
    CliError::new(why.to_string()).into()
}

/// State of a look at the channel of the agent that runs.
struct ChannelVisit {
    client: AgentClient,
    config: AgentConfig,
    update: UpdateConfig,
    places: ProgramPaths,
    /// Name of the node.
    node: String,
}

impl ChannelVisit {
    fn new(client: AgentClient) -> Result<Self, TakeoverFailure> {
        let running = RunningAgent::find(&client)?;
        let config = running.load_agent_config()?;
        let update = parts::find_configured_part(&config)
            .and_then(|updates: &ConfiguredUpdates| updates.config.clone());
        let update = update.ok_or_else(|| {
            TakeoverFailure::lasting(
                "this node does not look for updates: set picolet.update.source",
            )
        })?;
        let node = client.request_json("GET", "/node")?;
        Ok(Self {
            places: ProgramPaths::of_program(&running.program),
            node: (node["metadata"]["name"].as_str().unwrap_or("")).to_owned(),
            client,
            config,
            update,
        })
    }

    /// Has the agent count the bytes that this process used of the link.
    fn report_link_use(&self) {
        let spent = meter::counted_bytes().0;
        let sum = |way: usize| spent.iter().map(|class| class[way]).sum::<u64>();
        let (received, sent) = (sum(0), sum(1));
        let target = format!("/link/update?received={received}&sent={sent}");
        if received + sent > 0
            && let Err(e) = self.client.send_request("POST", &target, "")
        {
            log::warn!("{received} and {sent} bytes are not counted: {e}");
        }
    }

    fn update_dir(&self) -> PathBuf {
        self.config.dirs.root.join(DIR)
    }

    fn look_for_update(
        &self,
        who: UpdateRequester,
        quiet: bool,
    ) -> Result<String, TakeoverFailure> {
        if switch::read_trial(&self.places)?.is_some() {
            return Err(trial_under_way_error(&self.places).into());
        }
        self.make_dir()?;
        let dir = self.update_dir();
        // The lock is held to the end of the trial: two looks would write one file.
        let lock = fs::File::open(&dir).map_err(|e| file_error("open", &dir, &e))?;
        if lock.try_lock().is_err() {
            return Err(passing_failure("another look for updates is running"));
        }
        let mut memory = self.read_settled_memory()?;
        if memory != self.read_memory()? {
            self.write_memory(&memory)?;
        }
        // Removes the files of a look that was killed.
        if fs::File::open(&self.places.program).is_ok_and(|program| program.try_lock().is_ok()) {
            self.places.forget_staged();
        }
        self.may_begin(who)?;
        let mut channel = self.open_channel()?;
        let offer = self.read_offer(&mut channel)?;
        let force = who == UpdateRequester::Operator { force: true };
        if !force {
            self.refuse_expired(&offer)?;
        }
        let endless = match offer.expires {
            Some(_) => "",
            None => ", and the channel file does not say when it expires",
        };
        let installed = release::compute_sha256(&self.places.program)?;
        let node = update::UpdatingNode {
            name: &self.node,
            arch: BOARD,
            memory: &memory,
            installed: &installed,
        };
        let serial = offer.serial;
        match update::judge_offer(&offer, node, who != UpdateRequester::Agent, force) {
            OfferVerdict::Take => {}
            OfferVerdict::Have => return Ok(format!("serial {serial} is installed{endless}")),
            OfferVerdict::NotInShare => {
                return Ok(format!(
                    "serial {serial} is not offered to this node yet: its share is {} %{endless}",
                    offer.share
                ));
            }
            OfferVerdict::Refuse(why) => return Err(refused_update(why)),
        }
        let of_serial = |e: TakeoverFailure| {
            refused_update(format_args!("serial {serial}: {}", e.why.bare_message()))
        };
        release::may_stage(&self.places).map_err(of_serial)?;
        let part = self.fetch_tarball(&mut channel, &offer)?;
        let asked = UpgradeOptions {
            proof: ReleaseProof::Offered {
                sum: offer.sha256.clone(),
                base: offer.tarball_directory(),
            },
            restart: self.update.restart.clone(),
            wait_s: PATIENCE_S,
            force,
            quiet,
        };
        let staged = stage_and_check(RunningAgent::find(&self.client)?, &asked, &part);
        let staged = staged.map_err(|e| {
            if !release::compute_sha256(&part).is_ok_and(|sum| sum == offer.sha256) {
                // The tarball is damaged.
                let _ = fs::remove_file(&part);
            }
            if e.lasts { of_serial(e) } else { e }
        })?;
        let Some(staged) = staged else {
            memory.commit_release(serial, &installed);
            self.write_memory(&memory)?;
            let _ = fs::remove_file(&part);
            return Ok(format!("serial {serial} is installed"));
        };
        if staged.version != offer.version {
            memory.wrong = offer.sha256;
            self.write_memory(&memory)?;
            let _ = fs::remove_file(&part);
            return Err(refused_update(format_args!(
                "serial {serial} says it is {}, its channel says {}",
                staged.version, offer.version
            )));
        }
        // The download may have taken long.
        self.may_begin(who)?;
        let sum = staged.sum.clone();
        memory.trying = Some(UpdateAttempt { serial, sum });
        self.write_memory(&memory)?;
        // The program is staged by now. If this look fails, the next one fetches the tarball again.
        let _ = fs::remove_file(&part);
        // The agent that has started this process ends now, but the trial must go on.
        on_term::ignore_term().map_err(|e| CliError::new(format!("cannot ignore SIGTERM: {e}")))?;
        let version = &offer.version;
        self.keep_last_result(&format!("serial {serial}, picolet {version}, is on trial"));
        let told = staged.take_over(&asked);
        // If this fails, the next look does it.
        let _ = self
            .read_settled_memory()
            .and_then(|memory| self.write_memory(&memory));
        told?;
        Ok(format!("serial {serial} stays"))
    }

    /// Checks that an update may begin now, as far as that matters to the caller.
    fn may_begin(&self, who: UpdateRequester) -> Result<(), TakeoverFailure> {
        if who != UpdateRequester::Agent {
            return Ok(());
        }
        let health = health::check_health(&self.client)?;
        let is_far = self.update.source.is_over_link();
        let ask = |what: &str| {
            let said = self.client.request_json("GET", what);
            said.map_err(|e| passing_failure(e.bare_message()))
        };
        let node = ask("/node")?;
        let conditions = node["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let link = match is_far {
            true => ask("/link")?,
            false => Value::Null,
        };
        let wall = clock::wall_now();
        let pods = ask("/pods")?;
        let pods = pods["items"].as_array().into_iter().flatten();
        let now = UpdateCircumstances {
            wall,
            trusted: clock::is_synchronized() == Some(true),
            // The configuration may have changed since the agent has read it.
            costs: is_far && (self.config.link.cost.always || link["metered"] == true),
            waits: is_far && health.link.is_some_and(|link| link.waits),
            disk_pressure: conditions.any(|c| c["type"] == "DiskPressure" && c["status"] == "True"),
            moving: pods
                .filter(|pod| read_pod_progress(pod).is_moving(wall))
                .count(),
        };
        update::check_may_begin(&self.update.schedule, &now).map_err(passing_failure)
    }

    /// Refuses a channel file whose time has passed. Whoever shows an old one for ever keeps the nodes as they are.
    fn refuse_expired(&self, offer: &UpdateOffer) -> Result<(), TakeoverFailure> {
        let trusted = self.update.schedule.trusts_clock || clock::is_synchronized() == Some(true);
        let Some(at) = offer.expiry_if_passed(clock::wall_now(), trusted) else {
            return Ok(());
        };
        let mut e = refused_update(format_args!(
            "the channel file expired at {at}: sign a new one. If there is a new one, it has not reached this node"
        ));
        e.why.code = u8::try_from(EXPIRED).unwrap_or(1);
        Err(e)
    }

    fn open_channel(&self) -> Result<ReleaseChannel, TakeoverFailure> {
        Ok(match &self.update.source {
            UpdateSource::Dir(dir) => ReleaseChannel::in_dir(dir.clone()),
            UpdateSource::Url(url) => ReleaseChannel::at_url(DocumentLocation {
                url: url.clone(),
                headers: Vec::new(),
                ca: self.update.ca.clone(),
                proxies: read_proxies(),
                time: WHOLE_TIMEOUT,
            }),
            UpdateSource::Registry(reference) => {
                let settings =
                    pull_settings(&self.config.images, &self.config.dirs, read_proxies());
                let settings = settings.map_err(|e| refused_update(error_chain(&e)))?;
                let artifact = ArtifactReader::new(settings, reference.clone(), ARTIFACT);
                ReleaseChannel::in_registry(artifact, BOARD)
            }
        })
    }

    /// Reads the channel's offer. Its signature has to be one of the configured keys'.
    fn read_offer(&self, channel: &mut ReleaseChannel) -> Result<UpdateOffer, TakeoverFailure> {
        let (bytes, signature) = channel
            .read_channel_file()
            .map_err(|e| channel_failure(&e))?;
        if !release::is_signed(&bytes, &signature, &self.update.keys) {
            return Err(refused_update(
                "the channel file is not signed by a key of picolet.update.keys",
            ));
        }
        UpdateOffer::parse(&bytes)
            .map_err(|e| refused_update(format_args!("the channel file: {e}")))
    }

    /// Fetches the tarball into a directory that only root can write. Returns its file.
    fn fetch_tarball(
        &self,
        channel: &mut ReleaseChannel,
        offer: &UpdateOffer,
    ) -> Result<PathBuf, TakeoverFailure> {
        let dir = self.update_dir();
        let part = dir.join(format!("{}.part", offer.sha256));
        // Removes parts of tarballs that are not offered any more.
        for entry in fs::read_dir(&dir).map_err(|e| file_error("read", &dir, &e))? {
            let path = entry.map_err(|e| file_error("read", &dir, &e))?.path();
            if path.extension().is_some_and(|end| end == "part") && path != part {
                let _ = fs::remove_file(path);
            }
        }
        let beside = format!("{}.tar.gz", offer.tarball_directory());
        let location = offer.url.as_deref().unwrap_or(&beside);
        let mut fetch = || {
            let fetched = channel.fetch_tarball(location, (offer.size, &offer.sha256), &part);
            fetched.map_err(|e| channel_failure(&e))
        };
        // Pieces of several answers may be of different files.
        if fetch()? && release::compute_sha256(&part)? != offer.sha256 {
            fs::remove_file(&part).map_err(|e| file_error("remove", &part, &e))?;
            fetch()?;
        }
        Ok(part)
    }

    fn make_dir(&self) -> Result<(), CliError> {
        let dir = self.update_dir();
        let made = file::make_dirs(&dir, 0o700);
        made.map_err(|e| file_error("make", &dir, &e))
    }

    fn memory_path(&self) -> PathBuf {
        self.update_dir().join("memory")
    }

    fn read_memory(&self) -> Result<UpdateMemory, CliError> {
        let path = self.memory_path();
        let text =
            read_small_text(&path, MAX_MEMORY_BYTES).map_err(|e| file_error("read", &path, &e))?;
        text.parse()
            .map_err(|e| CliError::new(format!("{}: {e}: remove the file", path.display())))
    }

    /// Reads the memory of updates. If an update was begun, its end is added, but not written down.
    fn read_settled_memory(&self) -> Result<UpdateMemory, CliError> {
        let mut memory = self.read_memory()?;
        if let Some(trying) = &memory.trying
            && switch::read_trial(&self.places)?.is_none()
        {
            let was_put_back = switch::read_put_back_reason(&self.places, &trying.sum).is_some();
            memory.settle_attempt(
                &release::compute_sha256(&self.places.program)?,
                was_put_back,
            );
        }
        Ok(memory)
    }

    fn write_memory(&self, memory: &UpdateMemory) -> Result<(), CliError> {
        let path = self.memory_path();
        let text = memory.to_string();
        file::write_atomic(&path, text.as_bytes(), 0o600, true)
            .map_err(|e| file_error("write", &path, &e))
    }

    fn last_path(&self) -> PathBuf {
        self.config.dirs.run.join(LAST)
    }

    /// Keeps the result of a look, for people.
    fn keep_last_result(&self, text: &str) {
        let text = format!("{}: {text}\n", clock::wall_now());
        // The look succeeds without it.
        let _ = file::write_atomic(&self.last_path(), text.as_bytes(), 0o600, false);
    }

    fn print_status(&self) -> Result<(), CliError> {
        let memory = self.read_settled_memory()?;
        let schedule = &self.update.schedule;
        let source = match &self.update.source {
            UpdateSource::Url(url) => url.without_query(),
            UpdateSource::Registry(reference) => format!("oci://{reference}"),
            UpdateSource::Dir(dir) => dir.display().to_string(),
        };
        let next = schedule.next_look_time_s(&self.node, clock::wall_now());
        let next = next.map_or_else(
            || "never".into(),
            |at| WallTime::from_unix_seconds(at).to_string(),
        );
        let cost = &self.config.link.cost;
        let next = match self.update.source.is_over_link() {
            true if cost.always => "never: bytes cost money on this link".into(),
            true if !cost.interfaces.is_empty() => format!("{next}, unless bytes cost money then"),
            _ => next,
        };
        let minutes = schedule.window.length_s / 60;
        let last = read_small_text(&self.last_path(), MAX_LAST_BYTES).unwrap_or_default();
        let mut out = format!(
            "source     {source}\nboard      {BOARD}\nwindow     {:02}:{:02} UTC, for {} h {} min\nnext look  {next}\n",
            schedule.window.start_s / 3600,
            schedule.window.start_s / 60 % 60,
            minutes / 60,
            minutes % 60,
        );
        if clock::is_synchronized() != Some(true) && !schedule.trusts_clock {
            out += "clock      not synchronized: no update until it is\n";
        }
        out += &match memory.committed {
            0 => "serial     none yet\n".into(),
            serial => format!("serial     {serial}\n"),
        };
        for serial in &memory.barred {
            out += &format!("put back   serial {serial}\n");
        }
        if !last.is_empty() {
            out += &format!("last look  {last}");
        }
        print_text(&out)
    }
}

fn channel_failure(e: &ChannelError) -> TakeoverFailure {
    if e.may_succeed_later() {
        passing_failure(e)
    } else {
        refused_update(e)
    }
}

/// Reads a pod in the form of the API.
fn read_pod_progress(pod: &Value) -> PodTransition {
    let time = |value: &Value| value.as_str().and_then(WallTime::parse);
    let status = &pod["status"];
    let lists = ["initContainerStatuses", "containerStatuses"];
    let all = lists.into_iter().flat_map(|list| status[list].as_array());
    let is_made = |c: &Value| {
        let reason = &c["state"]["waiting"]["reason"];
        reason == "ContainerCreating" || reason == "PodInitializing"
    };
    PodTransition {
        started: time(&status["startTime"]),
        is_starting: status["phase"] == "Pending" || all.flatten().any(is_made),
        ends: time(&pod["metadata"]["deletionTimestamp"]),
    }
}

/// Reads a small file; empty if there is none.
fn read_small_text(path: &Path, most: u64) -> io::Result<String> {
    let mut text = String::new();
    match fs::File::open(path) {
        Ok(file) => file.take(most).read_to_string(&mut text).map(|_| text),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(text),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_of_the_socket() {
        // UPD-07
        let now = WallTime::parse("2026-01-01T00:10:00Z").expect("a time");
        let started = "2026-01-01T00:05:00Z";
        let container = |state: Value| json!([{"state": state}]);
        for (name, pod, moving) in [
            (
                "runs",
                json!({"status": {"phase": "Running", "startTime": started, "containerStatuses": container(json!({"running": {}}))}}),
                false,
            ),
            (
                "is new",
                json!({"status": {"phase": "Pending", "startTime": started}}),
                true,
            ),
            (
                "makes a container",
                json!({"status": {"phase": "Running", "startTime": started,
                    "containerStatuses": container(json!({"waiting": {"reason": "ContainerCreating"}}))}}),
                true,
            ),
            (
                "backs off",
                json!({"status": {"phase": "Running", "startTime": started,
                    "containerStatuses": container(json!({"waiting": {"reason": "CrashLoopBackOff"}}))}}),
                false,
            ),
            (
                "ends",
                json!({"metadata": {"deletionTimestamp": "2026-01-01T00:10:20Z"}, "status": {"phase": "Running"}}),
                true,
            ),
            (
                "is not taken on",
                json!({"status": {"phase": "Pending"}}),
                false,
            ),
            ("is nothing", json!(null), false),
        ] {
            assert_eq!(read_pod_progress(&pod).is_moving(now), moving, "{name}");
        }
    }

    #[test]
    fn a_small_file_is_read_with_a_bound() {
        let path = crate::testing::unused_path("last");
        assert_eq!(read_small_text(&path, 4).expect("none"), "");
        fs::write(&path, "123456").expect("written");
        assert_eq!(read_small_text(&path, 4).expect("read"), "1234");
        fs::remove_file(path).expect("removed");
    }
}
