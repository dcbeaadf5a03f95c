//! Collects the texts of all settings from all sources: flags, environment, `.env`, TOML file, systemd credentials.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use super::declaration::{PREFIX, SETTINGS, find};
use super::problem::{ConfigError, SettingOrigin};
use super::unknown_names::{CONTAINER_VARIABLES, UNSUPPORTED, nearest_setting, unsupported_restriction};
use super::{dotenv, file};

/// TOML file that is read if no other is named.
const DEFAULT_FILE: &str = "graspd.toml";

/// Name, without the prefix, of the variable that contains the path of the TOML file. It is not a setting, because
/// settings are read from that file.
const FILE_VARIABLE: &str = "CONFIG";

/// Variable in which systemd passes the folder of credentials.
const CREDENTIALS_VARIABLE: &str = "CREDENTIALS_DIRECTORY";

/// Errors that mean that a file does not exist.
const ABSENT: &[io::ErrorKind] = &[io::ErrorKind::NotFound, io::ErrorKind::NotADirectory];

/// Settings given on the command line.
#[derive(Default)]
pub(crate) struct CommandLineFlags {
    /// Setting name and value.
    pub(crate) settings: Vec<(&'static str, String)>,
    /// Path of the TOML file.
    pub(crate) file: Option<String>,
}

/// Function that reads a whole file.
type ReadFile = Box<dyn Fn(&Path) -> io::Result<String>>;

/// Access to files. Tests replace it.
pub(crate) struct FileAccess {
    pub(crate) current_dir: PathBuf,
    pub(crate) read: ReadFile,
}

impl Default for FileAccess {
    /// No files.
    fn default() -> Self {
        Self { current_dir: PathBuf::new(), read: Box::new(|_| Err(io::ErrorKind::NotFound.into())) }
    }
}

impl FileAccess {
    /// Reads a file whose path is relative to the current folder.
    pub(crate) fn read(&self, path: &Path) -> io::Result<String> {
        (self.read)(&self.current_dir.join(path))
    }
}

/// The texts of all settings that are given, before parsing. They can contain secrets, so there is no `Debug`.
#[derive(Default)]
pub(crate) struct SettingSources {
    /// Setting name to the text of the strongest source that has it.
    pub(crate) texts: BTreeMap<&'static str, (String, SettingOrigin)>,
    pub(crate) files: FileAccess,
    /// Errors while reading the sources.
    pub(crate) errors: Vec<ConfigError>,
    /// Warnings about variables that have no effect.
    pub(crate) warnings: Vec<String>,
}

impl SettingSources {
    /// Reads all sources, the strongest first.
    pub(crate) fn gather(flags: CommandLineFlags, variables: Vec<(OsString, OsString)>, files: FileAccess) -> Self {
        let mut sources = Self { files, ..Self::default() };
        for (name, text) in flags.settings {
            sources.add(name, text, SettingOrigin::Flag);
        }
        let credentials = variables.iter().find(|(name, _)| name == CREDENTIALS_VARIABLE).map(|(_, path)| path.clone());
        let mut file = flags.file;
        let environment = sources.read_environment(variables);
        let dotenv = sources.read_dotenv();
        for (variable, (text, origin)) in environment.into_iter().chain(dotenv) {
            let name = variable.strip_prefix(PREFIX).unwrap_or(&variable);
            match find(name) {
                Some(setting) if !text.is_empty() => sources.add(setting.name, text, origin),
                // Shells and container tools often set an empty variable to mean "not set".
                Some(_) => {}
                None if name == FILE_VARIABLE => file = file.or(Some(text).filter(|path| !path.is_empty())),
                None => match unsupported_restriction(name, &text) {
                    Some(error) => sources.errors.push(ConfigError::new(format!("{variable} ({origin})"), error)),
                    None => sources.warn_of_unknown(&variable, name, &origin),
                },
            }
        }
        sources.read_file(file.as_deref());
        if let Some(folder) = credentials {
            sources.read_credentials(Path::new(&folder));
        }
        sources
    }

    /// Adds the text of a setting, unless a stronger source has it.
    fn add(&mut self, name: &'static str, text: String, origin: SettingOrigin) {
        self.texts.entry(name).or_insert((text, origin));
    }

    /// Returns the variables of this program.
    fn read_environment(&mut self, all: Vec<(OsString, OsString)>) -> BTreeMap<String, (String, SettingOrigin)> {
        let mut variables = BTreeMap::new();
        let names = all.into_iter().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
        for (name, value) in names.filter(|(name, _)| name.starts_with(PREFIX)) {
            match value.into_string() {
                Ok(value) => drop(variables.insert(name, (value, SettingOrigin::Environment))),
                Err(_) => self.errors.push(ConfigError::new(format!("{name} (environment)"), "is not valid UTF-8")),
            }
        }
        variables
    }

    fn read_dotenv(&mut self) -> BTreeMap<String, (String, SettingOrigin)> {
        let path = Path::new(".env");
        // A folder of this name belongs to another tool.
        let text = self.read(path, &[ABSENT, &[io::ErrorKind::IsADirectory]].concat()).unwrap_or_default();
        dotenv::parse(path, &text, &mut self.errors)
    }

    fn read_file(&mut self, named: Option<&str>) {
        let path = Path::new(named.unwrap_or(DEFAULT_FILE));
        let Some(text) = self.read(path, if named.is_none() { ABSENT } else { &[] }) else { return };
        for (name, text) in file::parse(path, &text, &mut self.errors) {
            self.add(name, text, SettingOrigin::File { path: path.display().to_string() });
        }
    }

    fn read_credentials(&mut self, folder: &Path) {
        for setting in SETTINGS.iter().filter(|setting| setting.is_secret) {
            let path = folder.join(setting.key());
            if let Some(text) = self.read(&path, ABSENT) {
                self.add(setting.name, text, SettingOrigin::Credential { path: path.display().to_string() });
            }
        }
    }

    /// Reads a file. An error is recorded, unless it is one of those that do not matter.
    fn read(&mut self, path: &Path, ignored: &[io::ErrorKind]) -> Option<String> {
        let result = self.files.read(path);
        if let Err(error) = &result
            && !ignored.contains(&error.kind())
        {
            self.errors.push(ConfigError::new(path.display().to_string(), format!("cannot be read: {error}")));
        }
        result.ok()
    }

    fn warn_of_unknown(&mut self, variable: &str, name: &str, origin: &SettingOrigin) {
        let about = if CONTAINER_VARIABLES.contains(&name) {
            return;
        } else if UNSUPPORTED.contains(&name) {
            "is not used by this version of graspd".to_owned()
        } else if let Some(near) = nearest_setting(name) {
            format!("is not a setting and has no effect; did you mean {}?", near.variable())
        } else {
            "is not a setting and has no effect".to_owned()
        };
        self.warnings.push(format!("{variable} ({origin}) {about}"));
    }
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
        let files: BTreeMap<PathBuf, String> =
            files.iter().map(|(name, text)| (Path::new("/here").join(name), (*text).to_owned())).collect();
        let read = move |path: &Path| match files.get(path).map(String::as_str) {
            Some("forbidden") => Err(io::ErrorKind::PermissionDenied.into()),
            Some(text) => Ok(text.to_owned()),
            None => Err(io::Error::from(io::ErrorKind::NotFound)),
        };
        let variables = variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
        let files = FileAccess { current_dir: PathBuf::from("/here"), read: Box::new(read) };
        SettingSources::gather(flags, variables, files)
    }

    fn origin(sources: &SettingSources, name: &str) -> Option<(String, SettingOrigin)> {
        sources.texts.get(name).cloned()
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
                from("file", SettingOrigin::File { path: "graspd.toml".into() }),
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
        let path = "/run/c/relay_owner_nsec".to_owned();
        assert_eq!(
            origin(&sources, "RELAY_OWNER_NSEC"),
            Some(("from systemd\n".to_owned(), SettingOrigin::Credential { path }))
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
        let sources = SettingSources::gather(CommandLineFlags::default(), variables, FileAccess::default());
        assert_eq!(sources.errors, [ConfigError::new("NGIT_DOMAIN (environment)", "is not valid UTF-8")]);
    }
}
