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
    /// Returns the path of the generated owner key.
    pub(crate) fn owner_file(&self) -> PathBuf {
        self.relay_data_path.join(OWNER_FILE)
    }
}

/// Returns the operator's key: the configured one, or else the one in the data folder, which is generated if it is
/// missing.
///
/// Only the process that holds the lock of the data folder may call it, so that two processes do not generate different
/// keys.
pub(crate) fn load_owner_keys(config: &Config) -> anyhow::Result<Keys> {
    if let Some(secret) = &config.owner_secret {
        // The cause is left out here and below, because it can contain a part of the key.
        return Keys::parse(secret.reveal()).map_err(|_| anyhow!("RELAY_OWNER_NSEC is not a private key"));
    }
    let path = config.owner_file();
    match fs::read_to_string(&path) {
        Ok(text) => {
            warn_if_readable_by_others(&path);
            Keys::parse(text.trim()).map_err(|_| {
                anyhow!("{} does not contain a private key; restore it, or remove it to get a new one", path.display())
            })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let keys = Keys::generate();
            write_key_file(&keys, &path)
                .with_context(|| format!("cannot store a new owner key in {}", path.display()))?;
            tracing::info!(target: "admin", path = %path.display(), "generated the owner key");
            Ok(keys)
        }
        Err(error) => Err(error).with_context(|| format!("cannot read the owner key in {}", path.display())),
    }
}

/// Logs a warning if other users can read the key: they could sign in the name of the relay.
fn warn_if_readable_by_others(path: &Path) {
    const OTHERS_MASK: u32 = 0o077;
    match fs::metadata(path) {
        Ok(metadata) if metadata.permissions().mode() & OTHERS_MASK != 0 => {
            let path = path.display();
            tracing::warn!(target: "admin", %path, "other users have access to the owner key; set its mode to 0600");
        }
        _ => {}
    }
}

/// Writes the key file atomically, so that it is complete or missing even after a power failure.
fn write_key_file(keys: &Keys, path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().context("the path has no folder")?;
    fs::create_dir_all(folder)?;
    let temporary = path.with_extension("nsec.new");
    // A temporary file of a crashed process was never in use.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    writeln!(file, "{}", keys.secret_key().to_bech32()?)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
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
    fn generated_key_is_private_and_persistent() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = config(folder.path(), &[]);
        let first = load_owner_keys(&config).expect("generated");
        let path = config.relay_data_path.join(OWNER_FILE);
        assert_eq!(fs::metadata(&path).expect("written").permissions().mode() & 0o777, 0o600);
        let text = fs::read_to_string(&path).expect("readable");
        assert!(text.starts_with("nsec1") && text.ends_with('\n'));
        assert_eq!(load_owner_keys(&config).expect("read").public_key(), first.public_key());
        assert_eq!(fs::read_dir(&config.relay_data_path).expect("a folder").count(), 1, "no temporary file is left");
    }

    #[test]
    fn temporary_key_file_of_a_crash_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = config(folder.path(), &[]);
        fs::create_dir_all(&config.relay_data_path).expect("a folder");
        fs::write(config.relay_data_path.join(".relay-owner.nsec.new"), "nsec1half").expect("a draft");
        let keys = load_owner_keys(&config).expect("generated");
        assert_eq!(load_owner_keys(&config).expect("read").public_key(), keys.public_key());
        assert_eq!(fs::read_dir(&config.relay_data_path).expect("a folder").count(), 1);
    }

    #[test]
    fn configured_key_writes_no_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = config(folder.path(), &[("NGIT_RELAY_OWNER_NSEC", KEY)]);
        assert_eq!(load_owner_keys(&config).expect("given").secret_key().to_secret_hex(), KEY);
        assert!(!config.relay_data_path.exists());
    }

    #[test]
    fn damaged_key_file_is_an_error_without_the_secret() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = config(folder.path(), &[]);
        fs::create_dir_all(&config.relay_data_path).expect("a folder");
        for text in ["", "nsec1hush"] {
            fs::write(config.relay_data_path.join(OWNER_FILE), text).expect("written");
            let shown = format!("{:?}", load_owner_keys(&config).expect_err("damaged"));
            assert!(shown.contains("does not contain a private key") && !shown.contains("hush"), "{shown}");
        }
    }
}
