//! AppArmor profiles of containers: ours is loaded when a container needs it and the kernel lacks it, others are looked for.
//!
//! The kernel takes compiled profiles only, so `apparmor_parser` is called, once a boot. The profile's name carries its
//! version: a changed text is a profile of a new name beside the old one, under which older containers go on unchanged.
//! The loaded profiles are read from the kernel each time: tools that tidy profiles up remove those that lie in no
//! file.
//!
//! Source: apparmor.d(5), apparmor_parser(8), kernel `Documentation/admin-guide/LSM/apparmor.rst`.

use core::{cell::RefCell, time::Duration};
use std::{
    fs::{self, File},
    io::{self, Read},
    path::Path,
};

use super::program;
use crate::{
    api::cri::{LinuxSecurity, SecurityProfile},
    sys::child::{self, ChildInput, Command},
};

/// Name of our profile. A change of [`TEXT`] needs a new number: a test holds the two together.
pub const DEFAULT_PROFILE: &str = "picolet-default-v1";
/// The kernel's files of AppArmor.
const KERNEL: &str = "/sys/kernel/security/apparmor";
/// The kernel's list of loaded profiles, one line each: its name, then its mode in parentheses.
const LOADED: &str = "/sys/kernel/security/apparmor/profiles";
/// Prefix of the names of all our profiles, of every version.
const FAMILY: &str = "picolet-default-v";
/// Bytes read of that list: a desktop has some 200 profiles, 20 KiB.
const LOADED_LIMIT: u64 = 1 << 20;
/// Compiling takes 0.1 s on a server and a few seconds on a board.
const PARSER_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of the parser's words that are kept.
const PARSER_OUTPUT: usize = 4096;
/// The program that compiles and loads profiles.
const PARSER: &str = "apparmor_parser";

/// Our profile. It takes nothing from files of the machine, so that it is the same everywhere.
///
/// Nearly everything is allowed, for a container is held by other means. Denied is what would lead out of it with one
/// capability too many: mounting, and writing where the kernel is configured. In effect it is what Docker, containerd and
/// CRI-O load for their containers, so that an image that runs there runs here.
///
/// Patterns can only include: "all of `/proc/sys` but `kernel/shm*`" is spelled letter by letter.
const TEXT: &str = "\
profile NAME flags=(attach_disconnected, mediate_deleted) {
  file,
  network,
  unix,
  capability,
  umount,
  deny mount,

  # Stopped by the host and by the programs that start containers, where these have profiles. Containers of one pod may
  # share their processes although they were started under different versions of this profile.
  signal (receive) peer=unconfined,
  signal (receive) peer={runc,crun,youki,picolet},
  signal (send, receive) peer=picolet-default-v*,
  signal set=(exists),
  ptrace (readby, tracedby),
  ptrace (read, trace) peer=picolet-default-v*,

  # In /proc only processes may be written, and the limits of System V memory, which are the pod's own.
  deny /proc/* w,
  deny /proc/[^1-9s]*/** wkl,
  deny /proc/s[^y]*/** wkl,
  deny /proc/sy[^s]*/** wkl,
  deny /proc/sys?*/** wkl,
  deny /proc/sys/[^k]** wkl,
  deny /proc/sys/k[^e]** wkl,
  deny /proc/sys/kernel/[^s]** wkl,
  deny /proc/sys/kernel/s[^h]** wkl,
  deny /proc/sys/kernel/sh[^m]** wkl,
  deny /proc/sysrq-trigger rwklx,
  deny /proc/kcore rwklx,

  # In /sys only control groups.
  deny /sys/[^f]** wklx,
  deny /sys/f[^s]** wklx,
  deny /sys/fs/[^c]** wklx,
  deny /sys/fs/c[^g]** wklx,
  deny /sys/fs/cg[^r]** wklx,
  deny /sys/firmware/** rwklx,
  deny /sys/devices/virtual/powercap/** rwklx,
  deny /sys/kernel/security/** rwklx,
}
";

/// Reason why a container cannot have the profile that it asks for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppArmorError {
    /// The kernel has no profile of that name. The words are those that operators know from other runtimes.
    #[error("apparmor profile not found {0}")]
    NotLoaded(String),
    /// Our profile cannot be loaded: [`PARSER`] is not installed.
    #[error(
        "AppArmor profile {DEFAULT_PROFILE} cannot be loaded: apparmor_parser is not installed: install the package apparmor"
    )]
    NoParser,
    /// Loading our profile failed.
    #[error("AppArmor profile {DEFAULT_PROFILE} cannot be loaded: {0}")]
    Parser(String),
}

/// Our profile's name if it is loaded or [`PARSER`] is there to load it. For `check`, which changes nothing.
#[must_use]
pub fn obtainable_default() -> Option<&'static str> {
    let loaded = parse_profile_mode(&read_loaded_profiles(), DEFAULT_PROFILE).is_some();
    (loaded || program::search_usual_dirs(PARSER).is_some()).then_some(DEFAULT_PROFILE)
}

/// The profiles of this machine.
#[derive(Debug)]
pub(super) struct AppArmor {
    enforced: bool,
    /// Set once the parser has failed or was missing: logged once. It is not called again: that takes too long for each
    /// container.
    failed: RefCell<Option<AppArmorError>>,
}

impl AppArmor {
    /// `enforced`: the kernel has AppArmor and it is on.
    pub(super) fn new(enforced: bool) -> Self {
        Self {
            enforced,
            failed: RefCell::new(None),
        }
    }

    /// Loads our profile if it is not loaded, and logs a mode that does not hold containers. Returns no error: a
    /// container that asks for the profile gets it.
    pub(super) async fn prepare_default_profile(&self) {
        if !self.enforced {
            log::info!("AppArmor is not enabled on this machine: containers run without a profile");
            return;
        }
        match self.ensure_default().await {
            Ok(mode) if mode == "enforce" => {}
            Ok(mode) => log::warn!(
                "AppArmor profile {DEFAULT_PROFILE} was put into mode {mode}: it does not confine containers"
            ),
            // Logged by `ensure_default`.
            Err(_) => {}
        }
    }

    /// The profile that stands for the default in `security`'s container, empty if there is none.
    ///
    /// - Errors: the container names a profile that is not loaded, or asks for ours and it cannot be loaded.
    pub(super) async fn default_profile_for(
        &self,
        security: &LinuxSecurity,
    ) -> Result<&'static str, AppArmorError> {
        if !self.enforced || security.privileged {
            return Ok("");
        }
        match &security.apparmor {
            SecurityProfile::Unconfined => Ok(""),
            SecurityProfile::Localhost(name)
                if parse_profile_mode(&read_loaded_profiles(), name).is_some() =>
            {
                Ok("")
            }
            SecurityProfile::Localhost(name) => Err(AppArmorError::NotLoaded(name.clone())),
            SecurityProfile::RuntimeDefault => self.ensure_default().await.map(|_| DEFAULT_PROFILE),
            SecurityProfile::Unset => {
                let loaded = self.ensure_default().await;
                Ok(loaded.map_or("", |_| DEFAULT_PROFILE))
            }
        }
    }

    /// Loads our profile if it is not loaded and returns its mode.
    async fn ensure_default(&self) -> Result<String, AppArmorError> {
        let found = parse_profile_mode(&read_loaded_profiles(), DEFAULT_PROFILE);
        if let Some(mode) = found {
            return Ok(mode);
        }
        let before = self.failed.borrow().clone();
        // A parser that was missing may have been installed since; looking for it costs little.
        if let Some(error @ AppArmorError::Parser(_)) = before {
            return Err(error);
        }
        let result = load_default_profile().await;
        if let Err(error) = &result
            && before.as_ref() != Some(error)
        {
            log::warn!(
                "{error}; containers that ask for no profile run without one, those that ask for the default are refused"
            );
        }
        *self.failed.borrow_mut() = result.clone().err();
        result?;
        log::info!("AppArmor profile {DEFAULT_PROFILE} is loaded");
        Ok("enforce".into())
    }
}

/// Compiles our profile and hands it to the kernel.
async fn load_default_profile() -> Result<(), AppArmorError> {
    let parser = program::search_usual_dirs(PARSER).ok_or(AppArmorError::NoParser)?;
    let failed = AppArmorError::Parser;
    // No cache (`K`): it would be a file to keep in order for one profile a boot. `r`: another agent may be first.
    let command = Command::new(parser)
        .arg("-Kr")
        .stdin(ChildInput::Bytes(
            TEXT.replace("NAME", DEFAULT_PROFILE).into_bytes(),
        ))
        .capture_output(PARSER_OUTPUT);
    let output = child::run_command(command, Some(PARSER_TIMEOUT))
        .await
        .map_err(|e| failed(e.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(failed(format!(
        "apparmor_parser: {}: {}",
        output.status,
        words.split_whitespace().collect::<Vec<_>>().join(" ")
    )))
}

/// Our profiles that are loaded and hold no process: another agent's containers keep theirs.
pub fn unloadable_profiles() -> impl Iterator<Item = String> {
    filter_unloadable(&read_loaded_profiles(), Path::new("/proc")).into_iter()
}

/// Unloads our free profiles (reset).
///
/// Errors: the kernel's, of the first that could not be unloaded.
pub fn unload_free_profiles() -> io::Result<()> {
    for name in unloadable_profiles() {
        fs::write(Path::new(KERNEL).join(".remove"), name)?;
    }
    Ok(())
}

fn filter_unloadable(loaded: &str, proc: &Path) -> Vec<String> {
    let ours = |line: &str| {
        let (name, _) = line.rsplit_once(" (")?;
        let number = name.strip_prefix(FAMILY)?;
        number.parse::<u32>().ok().map(|_| name.to_owned())
    };
    let mut names: Vec<String> = loaded.lines().filter_map(ours).collect();
    if !names.is_empty() {
        for process in fs::read_dir(proc).into_iter().flatten().flatten() {
            let held = fs::read_to_string(process.path().join("attr/current")).unwrap_or_default();
            names.retain(|name| {
                held.trim_end()
                    .rsplit_once(" (")
                    .is_none_or(|(n, _)| n != name)
            });
        }
    }
    names
}

/// The kernel's list; empty if it cannot be read, for then no profile can be used either.
fn read_loaded_profiles() -> String {
    let mut text = String::new();
    let _ = File::open(LOADED).and_then(|f| f.take(LOADED_LIMIT).read_to_string(&mut text));
    text
}

/// Mode of a profile in the kernel's list (`enforce`, `complain`, …); `None` if it is not there.
fn parse_profile_mode(loaded: &str, name: &str) -> Option<String> {
    loaded.lines().find_map(|line| {
        // A name may have blanks and parentheses of its own.
        let (found, mode) = line.rsplit_once(" (")?;
        (found == name).then(|| mode.trim_end_matches(')').to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FNV-1a: enough to notice a change.
    fn digest(text: &str) -> u64 {
        text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        })
    }

    #[test]
    fn a_changed_text_has_a_new_name() {
        let known = [("picolet-default-v1", 0x797d_8b1a_c1f3_080d)];
        let now = (DEFAULT_PROFILE, digest(TEXT));
        assert!(
            known.last() == Some(&now),
            "the profile's text has changed: give it the next number, and add {now:?} here"
        );
    }

    #[test]
    fn only_our_idle_profiles_are_unloaded() {
        let proc = crate::testing::unused_path("apparmor");
        fs::create_dir_all(proc.join("17/attr")).expect("directory");
        let holds = |label: &str| fs::write(proc.join("17/attr/current"), label).expect("label");
        let loaded = "docker-default (enforce)\npicolet-default-v1 (enforce)\npicolet-default-v2 (complain)\npicolet-default-vx (enforce)\n";
        holds("unconfined\n");
        assert_eq!(
            filter_unloadable(loaded, &proc),
            ["picolet-default-v1", "picolet-default-v2"]
        );
        holds("picolet-default-v1 (enforce)\n");
        assert_eq!(filter_unloadable(loaded, &proc), ["picolet-default-v2"]);
        fs::remove_dir_all(&proc).expect("clean up");
    }

    #[test]
    fn modes() {
        let list =
            "/usr/bin/man (enforce)\nunconfined (x) (unconfined)\npicolet-default-v1 (complain)\n";
        for (name, want) in [
            ("/usr/bin/man", Some("enforce")),
            ("/usr/bin", None),
            ("unconfined", None),
            ("unconfined (x)", Some("unconfined")),
            ("picolet-default-v1", Some("complain")),
            ("", None),
        ] {
            assert_eq!(parse_profile_mode(list, name).as_deref(), want, "{name}");
        }
    }

    #[test]
    fn whom_a_missing_profile_stops() {
        // SEC-07
        use SecurityProfile::{Localhost, RuntimeDefault, Unconfined, Unset};
        let missing = "no-such-profile";
        for (profile, enforced, privileged, want) in [
            (Localhost(missing.into()), true, false, Err(())),
            (Localhost(missing.into()), true, true, Ok("")),
            // Without AppArmor the specification refuses such a profile.
            (Localhost(missing.into()), false, false, Ok("")),
            (RuntimeDefault, false, false, Ok("")),
            (RuntimeDefault, true, true, Ok("")),
            (Unconfined, true, false, Ok("")),
            (Unset, false, false, Ok("")),
        ] {
            let security = LinuxSecurity {
                privileged,
                apparmor: profile.clone(),
                ..LinuxSecurity::default()
            };
            let got = smol::block_on(AppArmor::new(enforced).default_profile_for(&security));
            assert_eq!(
                got.map_err(|_| ()),
                want,
                "{profile:?} {enforced} {privileged}"
            );
        }
    }
}
