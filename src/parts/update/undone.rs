//! Tells that an upgrade was undone: the guard that put this program back has left a note beside it (PKG-21).

use std::{
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
};

use crate::{
    agent::recorder::{EventRecorder, EventSeverity},
    logic::update::upgrade,
};

/// Bytes of the note.
const MAX_NOTE_BYTES: u64 = 1024;

/// Tells it as an event of the node, once.
pub(super) fn report_undone_upgrade(recorder: &EventRecorder) {
    let Ok(program) = std::env::current_exe() else {
        return;
    };
    if let Some(note) = take_undo_note(&program) {
        recorder.record_node_event(
            EventSeverity::Warning,
            "UpgradeUndone",
            &format!("The old program was put back, because the new one failed: {note}"),
        );
    }
}

fn take_undo_note(program: &Path) -> Option<String> {
    let beside = |end: &str| {
        let mut path = program.as_os_str().to_owned();
        path.push(end);
        PathBuf::from(path)
    };
    // While a program is on trial the guard is not through.
    if beside(upgrade::TRIAL).exists() {
        return None;
    }
    let mut note = Vec::new();
    let file = File::open(beside(upgrade::BACK)).ok()?;
    file.take(MAX_NOTE_BYTES).read_to_end(&mut note).ok()?;
    if let Err(e) = fs::remove_file(beside(upgrade::BACK)) {
        log::warn!("cannot remove the note of an upgrade: {e}");
    }
    // Sum, version, reason. What a program has said need not be text, and may be cut.
    let note = String::from_utf8_lossy(&note);
    let (_, told) = note.trim().split_once(' ')?;
    Some(told.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_told_once() {
        // PKG-21
        let dir = crate::testing::unused_path("note");
        fs::create_dir_all(&dir).expect("directory");
        let program = dir.join("picolet");
        assert_eq!(take_undo_note(&program), None);
        fs::write(dir.join("picolet.back"), "ab 0.2.0 it hung\n").expect("note");
        fs::write(dir.join("picolet.trial"), "").expect("trial");
        assert_eq!(take_undo_note(&program), None, "the guard is not through");
        fs::remove_file(dir.join("picolet.trial")).expect("removed");
        assert_eq!(take_undo_note(&program).as_deref(), Some("0.2.0 it hung"));
        assert_eq!(take_undo_note(&program), None);
        fs::write(dir.join("picolet.back"), b"ab 0.2.0 it \xc3").expect("note");
        assert_eq!(
            take_undo_note(&program).as_deref(),
            Some("0.2.0 it \u{fffd}")
        );
        fs::remove_dir_all(dir).expect("removed");
    }
}
