//! The file behind `terminationMessagePath`.

use std::{
    fs::{File, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
};

use super::{Volumes, is_component, mkdir_all};
use crate::api::PodUid;

impl Volumes {
    /// Makes the empty termination log of one container instance, writable for whatever user it runs as, and returns its path:
    /// `<pod>/containers/<container>/<instance>`. One that exists is emptied.
    ///
    /// - Errors: a name is not a plain file name, or the disk refuses.
    pub fn make_termination_log(
        &self,
        uid: &PodUid,
        container: &str,
        instance: &str,
    ) -> io::Result<PathBuf> {
        if ![uid.as_str(), container, instance]
            .iter()
            .all(|n| is_component(n))
        {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "container or instance is not a plain file name",
            ));
        }
        let dir = self.pod_dir(uid).join("containers").join(container);
        mkdir_all(&dir, 0o750)?;
        let path = dir.join(instance);
        File::create(&path)?.set_permissions(Permissions::from_mode(0o666))?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::testing::{Scratch, uid};
    use super::*;

    #[test]
    fn one_writable_file_per_instance() {
        // CFG-39
        let scratch = Scratch::new();
        let volumes = scratch.volumes();
        let first = volumes
            .make_termination_log(&uid(), "main", "0a1b2c3d")
            .unwrap();
        let second = volumes
            .make_termination_log(&uid(), "main", "4e5f6a7b")
            .unwrap();
        assert_ne!(first, second);
        assert!(first.ends_with("containers/main/0a1b2c3d"));
        let status = fs::metadata(&first).unwrap();
        assert_eq!(
            (status.len(), status.permissions().mode() & 0o7777),
            (0, 0o666)
        );
        assert!(volumes.make_termination_log(&uid(), "../x", "1").is_err());
    }
}
