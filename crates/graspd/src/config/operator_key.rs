//! The key of the relay's operator.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context, anyhow};
use nostr::key::Keys;
use nostr::nips::nip19::ToBech32;

use super::{Config, OWNER_FILE};

impl Config {
    /// Where a generated owner key is kept.
    pub(crate) fn owner_file(&self) -> PathBuf {
        self.relay_data_path.join(OWNER_FILE)
    }
}

/// The operator's key: the one that was set, else the one in the data folder, else a new one that is put there.
///
/// Call it only by the process that owns the data folder: two that generate at the same time would disagree.
pub(crate) fn owner_keys(config: &Config) -> anyhow::Result<Keys> {
    if let Some(secret) = &config.owner_secret {
        // The cause is dropped on purpose here and below, because it may repeat a part of the key.
        return Keys::parse(secret.reveal()).map_err(|_| anyhow!("RELAY_OWNER_NSEC is not a private key"));
    }
    let path = config.owner_file();
    match fs::read_to_string(&path) {
        Ok(text) => {
            warn_when_open(&path);
            Keys::parse(text.trim()).map_err(|_| {
                anyhow!("{} does not hold a private key; restore it, or remove it to get a new one", path.display())
            })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let keys = Keys::generate();
            keep(&keys, &path).with_context(|| format!("cannot store a new owner key in {}", path.display()))?;
            tracing::info!(path = %path.display(), "generated the key of the relay's owner");
            Ok(keys)
        }
        Err(error) => Err(error).with_context(|| format!("cannot read the owner key in {}", path.display())),
    }
}

/// Others on the machine who can read the key can speak for the relay.
fn warn_when_open(path: &Path) {
    const OTHERS: u32 = 0o077;
    match fs::metadata(path) {
        Ok(metadata) if metadata.permissions().mode() & OTHERS != 0 => {
            tracing::warn!(path = %path.display(), "other users have access to the owner key; set its mode to 0600");
        }
        _ => {}
    }
}

/// Writes the key so that the file is either whole or not there, also after a power failure.
fn keep(keys: &Keys, path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().context("the path has no folder")?;
    fs::create_dir_all(folder)?;
    let draft = path.with_extension("nsec.new");
    // A draft left by a crash was never anybody's key.
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    writeln!(file, "{}", keys.secret_key().to_bech32()?)?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    File::open(folder)?.sync_all()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::resolve::resolve;
    use super::super::sources::tests::gather;
    use super::*;

    const KEY: &str = "0000000000000000000000000000000000000000000000000000000000000001";

    fn config(folder: &Path, variables: &[(&str, &str)]) -> Config {
        let relay = folder.join("relay");
        let git = folder.join("git");
        let flags =
            [("RELAY_DATA_PATH", relay.to_str().expect("text")), ("GIT_DATA_PATH", git.to_str().expect("text"))];
        resolve(&gather(&flags, variables, &[])).expect("correct").config
    }

    #[test]
    fn a_generated_key_is_private_and_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = config(folder.path(), &[]);
        let first = owner_keys(&config).expect("generated");
        let path = config.relay_data_path.join(OWNER_FILE);
        assert_eq!(fs::metadata(&path).expect("written").permissions().mode() & 0o777, 0o600);
        let text = fs::read_to_string(&path).expect("readable");
        assert!(text.starts_with("nsec1") && text.ends_with('\n'));
        assert_eq!(owner_keys(&config).expect("read").public_key(), first.public_key());
        assert_eq!(fs::read_dir(&config.relay_data_path).expect("a folder").count(), 1, "no draft is left");
    }

    #[test]
    fn a_draft_left_by_a_crash_is_in_nobodys_way() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = config(folder.path(), &[]);
        fs::create_dir_all(&config.relay_data_path).expect("a folder");
        fs::write(config.relay_data_path.join(".relay-owner.nsec.new"), "nsec1half").expect("a draft");
        let keys = owner_keys(&config).expect("generated");
        assert_eq!(owner_keys(&config).expect("read").public_key(), keys.public_key());
        assert_eq!(fs::read_dir(&config.relay_data_path).expect("a folder").count(), 1);
    }

    #[test]
    fn a_given_key_writes_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = config(folder.path(), &[("NGIT_RELAY_OWNER_NSEC", KEY)]);
        assert_eq!(owner_keys(&config).expect("given").secret_key().to_secret_hex(), KEY);
        assert!(!config.relay_data_path.exists());
    }

    #[test]
    fn a_damaged_file_is_an_error_that_keeps_the_secret() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = config(folder.path(), &[]);
        fs::create_dir_all(&config.relay_data_path).expect("a folder");
        for text in ["", "nsec1hush"] {
            fs::write(config.relay_data_path.join(OWNER_FILE), text).expect("written");
            let shown = format!("{:?}", owner_keys(&config).expect_err("damaged"));
            assert!(shown.contains("does not hold a private key") && !shown.contains("hush"), "{shown}");
        }
    }
}
