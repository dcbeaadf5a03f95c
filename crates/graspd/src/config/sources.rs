//! Collects the texts of all settings from all sources. Access to the system goes through [`ProcessEnvironment`].

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use grasp_core::limits;

use super::dotenv::DotEnv;
use super::file::TomlFile;
use super::lists;
use super::lists::ListFiles;
use super::problem::{ConfigError, SettingOrigin};
use super::settings::{FILE_VARIABLE, PREFIX, SETTINGS, Setting};

/// TOML file that is read if no other is named.
const DEFAULT_FILE: &str = "graspd.toml";
/// Variable in which systemd passes the folder of credentials.
const CREDENTIALS_VARIABLE: &str = "CREDENTIALS_DIRECTORY";

/// Settings given on the command line.
#[derive(Default)]
pub(crate) struct CommandLineFlags {
    /// Setting name to value.
    pub(crate) settings: BTreeMap<&'static str, String>,
    /// Path of the TOML file.
    pub(crate) file: Option<String>,
}

/// The environment of a process, as far as settings are concerned.
pub(crate) struct ProcessEnvironment<'a> {
    /// Environment variables.
    pub(crate) variables: Vec<(OsString, OsString)>,
    /// Current folder.
    pub(crate) current_dir: PathBuf,
    /// Function that reads a whole file.
    pub(crate) read: &'a dyn Fn(&Path) -> io::Result<String>,
}

/// The texts of all sources, before parsing. They can contain secrets, so there is no `Debug`.
#[derive(Default)]
pub(crate) struct SettingSources {
    pub(crate) flags: BTreeMap<&'static str, String>,
    /// Variables with the prefix of this program.
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) dotenv: Option<DotEnv>,
    pub(crate) file: Option<TomlFile>,
    /// Setting name to file and content, for secrets only.
    pub(crate) credentials: BTreeMap<&'static str, (PathBuf, String)>,
    /// Moderation lists from files.
    pub(super) lists: ListFiles,
    pub(crate) current_dir: PathBuf,
    /// Errors while reading the sources.
    pub(crate) errors: Vec<ConfigError>,
}

impl SettingSources {
    /// Reads all sources.
    pub(crate) fn gather(flags: CommandLineFlags, environment_source: ProcessEnvironment<'_>) -> Self {
        let mut sources = SettingSources {
            flags: flags.settings,
            current_dir: environment_source.current_dir.clone(),
            ..SettingSources::default()
        };
        let credentials = sources.read_environment(&environment_source);
        sources.read_dotenv(&environment_source);
        sources.read_file(flags.file, &environment_source);
        if let Some(folder) = credentials {
            sources.read_credentials(&folder, &environment_source);
        }
        sources.read_lists(&environment_source);
        sources
    }

    /// Returns the text of the strongest source that has the setting.
    pub(crate) fn find_text(&self, setting: &Setting) -> Option<(&str, SettingOrigin)> {
        if let Some(text) = self.flags.get(setting.name) {
            return Some((text, SettingOrigin::Flag));
        }
        let variable = setting.variable();
        // Shells and container tools often set an empty variable to mean "not set".
        if let Some(text) = self.environment.get(&variable).filter(|text| !text.is_empty()) {
            return Some((text, SettingOrigin::Environment));
        }
        if let Some(dotenv) = &self.dotenv
            && let Some((text, line)) = dotenv.entries.get(&variable).filter(|(text, _)| !text.is_empty())
        {
            return Some((text, SettingOrigin::DotEnv { path: dotenv.path.clone(), line: *line }));
        }
        if let Some(file) = &self.file
            && let Some(text) = file.entries.get(setting.name)
        {
            return Some((text, SettingOrigin::File(file.path.clone())));
        }
        let (path, text) = self.credentials.get(setting.name)?;
        Some((text, SettingOrigin::Credential(path.clone())))
    }

    /// Collects the variables of this program, and returns the folder of systemd credentials.
    fn read_environment(&mut self, environment_source: &ProcessEnvironment<'_>) -> Option<PathBuf> {
        let mut credentials = None;
        for (name, value) in &environment_source.variables {
            let Some(name) = name.to_str() else { continue };
            if name == CREDENTIALS_VARIABLE {
                credentials = Some(PathBuf::from(value));
            }
            if !name.starts_with(PREFIX) {
                continue;
            }
            match value.to_str() {
                Some(value) => {
                    self.environment.insert(name.to_owned(), value.to_owned());
                }
                None => self.errors.push(ConfigError::new(format!("{name} (environment)"), "is not valid UTF-8")),
            }
        }
        credentials
    }

    fn read_dotenv(&mut self, environment_source: &ProcessEnvironment<'_>) {
        let path = PathBuf::from(".env");
        match (environment_source.read)(&environment_source.current_dir.join(&path)) {
            Ok(text) => self.dotenv = Some(DotEnv::parse(path, &text, &mut self.errors)),
            // A folder of this name belongs to another tool.
            Err(error) if is_absent(&error) || error.kind() == io::ErrorKind::IsADirectory => {}
            Err(error) => self.unreadable(&path, &error),
        }
    }

    fn read_file(&mut self, flag: Option<String>, environment_source: &ProcessEnvironment<'_>) {
        let variable = format!("{PREFIX}{FILE_VARIABLE}");
        let in_environment = self.environment.get(&variable).cloned();
        let in_dotenv =
            self.dotenv.as_ref().and_then(|dotenv| dotenv.entries.get(&variable)).map(|(text, _)| text.clone());
        let named =
            flag.or(in_environment.filter(|text| !text.is_empty())).or(in_dotenv.filter(|text| !text.is_empty()));
        let path = PathBuf::from(named.as_deref().unwrap_or(DEFAULT_FILE));
        match (environment_source.read)(&environment_source.current_dir.join(&path)) {
            Ok(text) => self.file = Some(TomlFile::parse(path, &text, &mut self.errors)),
            Err(error) if is_absent(&error) && named.is_none() => {}
            Err(error) => self.unreadable(&path, &error),
        }
    }

    fn read_credentials(&mut self, folder: &Path, environment_source: &ProcessEnvironment<'_>) {
        for setting in SETTINGS.iter().filter(|setting| setting.is_secret()) {
            let path = folder.join(setting.key());
            match (environment_source.read)(&path) {
                Ok(text) => {
                    self.credentials.insert(setting.name, (path, text));
                }
                Err(error) if is_absent(&error) => {}
                Err(error) => self.unreadable(&path, &error),
            }
        }
    }

    fn read_lists(&mut self, environment_source: &ProcessEnvironment<'_>) {
        for setting in SETTINGS.iter().filter(|setting| setting.is_list()) {
            let Some(path) = self.find_text(setting).and_then(|(text, _)| lists::file_path(text).map(Path::to_owned))
            else {
                continue;
            };
            let text = match (environment_source.read)(&environment_source.current_dir.join(&path)) {
                Ok(text) if text.len() as u64 > limits::MAX_MODERATION_LIST_BYTES => {
                    let max = limits::MAX_MODERATION_LIST_BYTES;
                    Err(format!("has {} bytes, but at most {max} are allowed", text.len()))
                }
                Ok(text) => Ok(text),
                Err(error) => Err(format!("cannot be read: {error}")),
            };
            self.lists.insert(setting.name, (path, text));
        }
    }

    fn unreadable(&mut self, path: &Path, error: &io::Error) {
        self.errors.push(ConfigError::new(path.display().to_string(), format!("cannot be read: {error}")));
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Reads sources that consist of the arguments only.
    pub(crate) fn gather(
        flags: &[(&'static str, &str)],
        variables: &[(&str, &str)],
        files: &[(&str, &str)],
    ) -> SettingSources {
        let settings = flags.iter().filter(|(name, _)| *name != FILE_VARIABLE);
        let flags = CommandLineFlags {
            settings: settings.map(|(name, value)| (*name, (*value).to_owned())).collect(),
            file: flags.iter().find(|(name, _)| *name == FILE_VARIABLE).map(|(_, value)| (*value).to_owned()),
        };
        let read = |path: &Path| {
            let found = files.iter().find(|(name, _)| Path::new("/here").join(name) == path);
            match found {
                Some((_, "forbidden")) => Err(io::ErrorKind::PermissionDenied.into()),
                Some((_, text)) => Ok((*text).to_owned()),
                None => Err(io::Error::from(io::ErrorKind::NotFound)),
            }
        };
        let variables = variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
        SettingSources::gather(
            flags,
            ProcessEnvironment { variables, current_dir: PathBuf::from("/here"), read: &read },
        )
    }

    fn origin(sources: &SettingSources, name: &str) -> Option<(String, SettingOrigin)> {
        let setting = SETTINGS.iter().find(|setting| setting.name == name).expect("declared");
        sources.find_text(setting).map(|(text, origin)| (text.to_owned(), origin))
    }

    #[test]
    fn stronger_source_overrides_weaker_one() {
        let flag = [("DOMAIN", "flag")];
        let variable = [("NGIT_DOMAIN", "environment")];
        let dotenv = (".env", "\nNGIT_DOMAIN=dotenv");
        let file = ("graspd.toml", "domain = 'file'");
        let from = |text: &str, origin| Some((text.to_owned(), origin));
        let in_dotenv = || from("dotenv", SettingOrigin::DotEnv { path: ".env".into(), line: 2 });
        let cases = [
            (gather(&flag, &variable, &[dotenv, file]), from("flag", SettingOrigin::Flag)),
            (gather(&[], &variable, &[dotenv, file]), from("environment", SettingOrigin::Environment)),
            (gather(&[], &[], &[dotenv, file]), in_dotenv()),
            (gather(&[], &[("NGIT_DOMAIN", "")], &[dotenv, file]), in_dotenv()),
            (
                gather(&[], &[], &[(".env", "NGIT_DOMAIN="), file]),
                from("file", SettingOrigin::File("graspd.toml".into())),
            ),
            (gather(&[], &[], &[]), None),
        ];
        for (index, (sources, expected)) in cases.iter().enumerate() {
            assert_eq!(origin(sources, "DOMAIN"), *expected, "case {index}");
            assert_eq!(sources.errors, []);
        }
    }

    #[test]
    fn config_file_can_be_named_in_three_ways() {
        let files = |dotenv| {
            [
                (".env", dotenv),
                ("a.toml", "domain='a'"),
                ("b.toml", "domain='b'"),
                ("c.toml", "domain='c'"),
                ("graspd.toml", "domain='usual'"),
            ]
        };
        let domain = |sources: &SettingSources| origin(sources, "DOMAIN").map(|(text, _)| text);
        let all = gather(&[("CONFIG", "a.toml")], &[("NGIT_CONFIG", "b.toml")], &files("NGIT_CONFIG=c.toml"));
        assert_eq!(domain(&all).as_deref(), Some("a"));
        let two = gather(&[], &[("NGIT_CONFIG", "b.toml")], &files("NGIT_CONFIG=c.toml"));
        assert_eq!(domain(&two).as_deref(), Some("b"));
        assert_eq!(domain(&gather(&[], &[], &files("NGIT_CONFIG=c.toml"))).as_deref(), Some("c"));
        assert_eq!(domain(&gather(&[], &[], &files(""))).as_deref(), Some("usual"));
    }

    #[test]
    fn unreadable_files_are_errors() {
        let sources = gather(&[("CONFIG", "gone.toml")], &[], &[(".env", "forbidden")]);
        let places: Vec<_> = sources.errors.iter().map(|problem| problem.location.as_str()).collect();
        assert_eq!(places, [".env", "gone.toml"]);
    }

    #[test]
    fn setting_overrides_systemd_credential() {
        let variables = [("CREDENTIALS_DIRECTORY", "/run/c")];
        let files = [("/run/c/relay_owner_nsec", "from systemd\n"), ("/run/c/domain", "no secret, so not read")];
        let sources = gather(&[], &variables, &files);
        let path = PathBuf::from("/run/c/relay_owner_nsec");
        assert_eq!(
            origin(&sources, "RELAY_OWNER_NSEC"),
            Some(("from systemd\n".to_owned(), SettingOrigin::Credential(path)))
        );
        assert_eq!(origin(&sources, "DOMAIN"), None);
        let both = gather(&[], &variables, &[files[0], ("graspd.toml", "relay_owner_nsec = 'x'")]);
        assert_eq!(origin(&both, "RELAY_OWNER_NSEC").map(|(text, _)| text).as_deref(), Some("x"));
    }

    #[cfg(unix)]
    #[test]
    fn non_utf8_variable_is_an_error() {
        use std::os::unix::ffi::OsStringExt;
        let broken = OsString::from_vec(vec![0xff]);
        let variables =
            vec![("NGIT_DOMAIN".into(), broken.clone()), ("OTHER".into(), broken.clone()), (broken, "x".into())];
        let read = |_: &Path| Err(io::ErrorKind::NotFound.into());
        let environment_source = ProcessEnvironment { variables, current_dir: PathBuf::new(), read: &read };
        let sources = SettingSources::gather(CommandLineFlags::default(), environment_source);
        assert_eq!(sources.errors, [ConfigError::new("NGIT_DOMAIN (environment)", "is not valid UTF-8")]);
    }
}
