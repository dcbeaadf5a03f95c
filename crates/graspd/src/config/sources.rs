//! Gathering what was written where. This is the only part that touches the outside, through what it is handed.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use grasp_core::limits;

use super::dotenv::DotEnv;
use super::file::File;
use super::lists;
use super::lists::Files;
use super::problem::{Origin, Problem};
use super::settings::{FILE_VARIABLE, PREFIX, SETTINGS, Setting};

/// The file that is read when nobody names one.
const USUAL_FILE: &str = "graspd.toml";
/// The variable with which systemd says where it put credentials.
const CREDENTIALS_VARIABLE: &str = "CREDENTIALS_DIRECTORY";

/// What the command line said.
#[derive(Default)]
pub(crate) struct Flags {
    /// Setting name to value.
    pub(crate) settings: BTreeMap<&'static str, String>,
    /// The TOML file.
    pub(crate) file: Option<String>,
}

/// The outside, as far as settings are concerned.
pub(crate) struct Outside<'a> {
    /// The environment of the process.
    pub(crate) variables: Vec<(OsString, OsString)>,
    /// The folder in which the process was started.
    pub(crate) current_dir: PathBuf,
    /// Reads a whole file.
    pub(crate) read: &'a dyn Fn(&Path) -> io::Result<String>,
}

/// Everything that was written anywhere, not yet understood. It may hold secrets, so it has no `Debug`.
#[derive(Default)]
pub(crate) struct Sources {
    pub(crate) flags: BTreeMap<&'static str, String>,
    /// Only our own variables.
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) dotenv: Option<DotEnv>,
    pub(crate) file: Option<File>,
    /// Setting name to file and content, for secrets only.
    pub(crate) credentials: BTreeMap<&'static str, (PathBuf, String)>,
    /// Lists that stand in files of their own.
    pub(super) lists: Files,
    pub(crate) current_dir: PathBuf,
    /// What went wrong while gathering.
    pub(crate) problems: Vec<Problem>,
}

impl Sources {
    /// Reads everything there is to read.
    pub(crate) fn gather(flags: Flags, outside: Outside<'_>) -> Self {
        let mut sources =
            Sources { flags: flags.settings, current_dir: outside.current_dir.clone(), ..Sources::default() };
        let credentials = sources.read_environment(&outside);
        sources.read_dotenv(&outside);
        sources.read_file(flags.file, &outside);
        if let Some(folder) = credentials {
            sources.read_credentials(&folder, &outside);
        }
        sources.read_lists(&outside);
        sources
    }

    /// The strongest text that was given for a setting.
    pub(crate) fn find(&self, setting: &Setting) -> Option<(&str, Origin)> {
        if let Some(text) = self.flags.get(setting.name) {
            return Some((text, Origin::Flag));
        }
        let variable = setting.variable();
        // An empty variable is how shells and container tools say "not set".
        if let Some(text) = self.environment.get(&variable).filter(|text| !text.is_empty()) {
            return Some((text, Origin::Environment));
        }
        if let Some(dotenv) = &self.dotenv
            && let Some((text, line)) = dotenv.entries.get(&variable).filter(|(text, _)| !text.is_empty())
        {
            return Some((text, Origin::DotEnv { path: dotenv.path.clone(), line: *line }));
        }
        if let Some(file) = &self.file
            && let Some(text) = file.entries.get(setting.name)
        {
            return Some((text, Origin::File(file.path.clone())));
        }
        let (path, text) = self.credentials.get(setting.name)?;
        Some((text, Origin::Credential(path.clone())))
    }

    /// Keeps our own variables, and returns the folder of systemd's credentials.
    fn read_environment(&mut self, outside: &Outside<'_>) -> Option<PathBuf> {
        let mut credentials = None;
        for (name, value) in &outside.variables {
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
                None => self.problems.push(Problem::new(format!("{name} (environment)"), "is not valid UTF-8")),
            }
        }
        credentials
    }

    fn read_dotenv(&mut self, outside: &Outside<'_>) {
        let path = PathBuf::from(".env");
        match (outside.read)(&outside.current_dir.join(&path)) {
            Ok(text) => self.dotenv = Some(DotEnv::parse(path, &text, &mut self.problems)),
            // A folder of this name belongs to some other tool.
            Err(error) if is_absent(&error) || error.kind() == io::ErrorKind::IsADirectory => {}
            Err(error) => self.unreadable(&path, &error),
        }
    }

    fn read_file(&mut self, flag: Option<String>, outside: &Outside<'_>) {
        let variable = format!("{PREFIX}{FILE_VARIABLE}");
        let in_environment = self.environment.get(&variable).cloned();
        let in_dotenv =
            self.dotenv.as_ref().and_then(|dotenv| dotenv.entries.get(&variable)).map(|(text, _)| text.clone());
        let named =
            flag.or(in_environment.filter(|text| !text.is_empty())).or(in_dotenv.filter(|text| !text.is_empty()));
        let path = PathBuf::from(named.as_deref().unwrap_or(USUAL_FILE));
        match (outside.read)(&outside.current_dir.join(&path)) {
            Ok(text) => self.file = Some(File::parse(path, &text, &mut self.problems)),
            Err(error) if is_absent(&error) && named.is_none() => {}
            Err(error) => self.unreadable(&path, &error),
        }
    }

    fn read_credentials(&mut self, folder: &Path, outside: &Outside<'_>) {
        for setting in SETTINGS.iter().filter(|setting| setting.is_secret()) {
            let path = folder.join(setting.key());
            match (outside.read)(&path) {
                Ok(text) => {
                    self.credentials.insert(setting.name, (path, text));
                }
                Err(error) if is_absent(&error) => {}
                Err(error) => self.unreadable(&path, &error),
            }
        }
    }

    fn read_lists(&mut self, outside: &Outside<'_>) {
        for setting in SETTINGS.iter().filter(|setting| setting.is_list()) {
            let Some(path) = self.find(setting).and_then(|(text, _)| lists::path(text).map(Path::to_owned)) else {
                continue;
            };
            let text = match (outside.read)(&outside.current_dir.join(&path)) {
                Ok(text) if text.len() as u64 > limits::MAX_LIST_BYTES => {
                    Err(format!("has {} bytes, at most {} are read", text.len(), limits::MAX_LIST_BYTES))
                }
                Ok(text) => Ok(text),
                Err(error) => Err(format!("cannot be read: {error}")),
            };
            self.lists.insert(setting.name, (path, text));
        }
    }

    fn unreadable(&mut self, path: &Path, error: &io::Error) {
        self.problems.push(Problem::new(path.display().to_string(), format!("cannot be read: {error}")));
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Gathers from a world that exists only in the arguments.
    pub(crate) fn gather(
        flags: &[(&'static str, &str)],
        variables: &[(&str, &str)],
        files: &[(&str, &str)],
    ) -> Sources {
        let settings = flags.iter().filter(|(name, _)| *name != FILE_VARIABLE);
        let flags = Flags {
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
        Sources::gather(flags, Outside { variables, current_dir: PathBuf::from("/here"), read: &read })
    }

    fn origin(sources: &Sources, name: &str) -> Option<(String, Origin)> {
        let setting = SETTINGS.iter().find(|setting| setting.name == name).expect("declared");
        sources.find(setting).map(|(text, origin)| (text.to_owned(), origin))
    }

    #[test]
    fn each_level_gives_way_to_the_one_above() {
        let flag = [("DOMAIN", "flag")];
        let variable = [("NGIT_DOMAIN", "environment")];
        let dotenv = (".env", "\nNGIT_DOMAIN=dotenv");
        let file = ("graspd.toml", "domain = 'file'");
        let from = |text: &str, origin| Some((text.to_owned(), origin));
        let in_dotenv = || from("dotenv", Origin::DotEnv { path: ".env".into(), line: 2 });
        let cases = [
            (gather(&flag, &variable, &[dotenv, file]), from("flag", Origin::Flag)),
            (gather(&[], &variable, &[dotenv, file]), from("environment", Origin::Environment)),
            (gather(&[], &[], &[dotenv, file]), in_dotenv()),
            (gather(&[], &[("NGIT_DOMAIN", "")], &[dotenv, file]), in_dotenv()),
            (gather(&[], &[], &[(".env", "NGIT_DOMAIN="), file]), from("file", Origin::File("graspd.toml".into()))),
            (gather(&[], &[], &[]), None),
        ];
        for (index, (sources, expected)) in cases.iter().enumerate() {
            assert_eq!(origin(sources, "DOMAIN"), *expected, "case {index}");
            assert_eq!(sources.problems, []);
        }
    }

    #[test]
    fn the_file_can_be_named_in_three_places() {
        let files = |dotenv| {
            [
                (".env", dotenv),
                ("a.toml", "domain='a'"),
                ("b.toml", "domain='b'"),
                ("c.toml", "domain='c'"),
                ("graspd.toml", "domain='usual'"),
            ]
        };
        let domain = |sources: &Sources| origin(sources, "DOMAIN").map(|(text, _)| text);
        let all = gather(&[("CONFIG", "a.toml")], &[("NGIT_CONFIG", "b.toml")], &files("NGIT_CONFIG=c.toml"));
        assert_eq!(domain(&all).as_deref(), Some("a"));
        let two = gather(&[], &[("NGIT_CONFIG", "b.toml")], &files("NGIT_CONFIG=c.toml"));
        assert_eq!(domain(&two).as_deref(), Some("b"));
        assert_eq!(domain(&gather(&[], &[], &files("NGIT_CONFIG=c.toml"))).as_deref(), Some("c"));
        assert_eq!(domain(&gather(&[], &[], &files(""))).as_deref(), Some("usual"));
    }

    #[test]
    fn files_that_cannot_be_read_are_problems() {
        let sources = gather(&[("CONFIG", "gone.toml")], &[], &[(".env", "forbidden")]);
        let places: Vec<_> = sources.problems.iter().map(|problem| problem.place.as_str()).collect();
        assert_eq!(places, [".env", "gone.toml"]);
    }

    #[test]
    fn a_credential_is_weaker_than_a_setting() {
        let variables = [("CREDENTIALS_DIRECTORY", "/run/c")];
        let files = [("/run/c/relay_owner_nsec", "from systemd\n"), ("/run/c/domain", "no secret, so not read")];
        let sources = gather(&[], &variables, &files);
        let path = PathBuf::from("/run/c/relay_owner_nsec");
        assert_eq!(origin(&sources, "RELAY_OWNER_NSEC"), Some(("from systemd\n".to_owned(), Origin::Credential(path))));
        assert_eq!(origin(&sources, "DOMAIN"), None);
        let both = gather(&[], &variables, &[files[0], ("graspd.toml", "relay_owner_nsec = 'x'")]);
        assert_eq!(origin(&both, "RELAY_OWNER_NSEC").map(|(text, _)| text).as_deref(), Some("x"));
    }

    #[cfg(unix)]
    #[test]
    fn a_variable_that_is_not_text_is_a_problem() {
        use std::os::unix::ffi::OsStringExt;
        let broken = OsString::from_vec(vec![0xff]);
        let variables =
            vec![("NGIT_DOMAIN".into(), broken.clone()), ("OTHER".into(), broken.clone()), (broken, "x".into())];
        let read = |_: &Path| Err(io::ErrorKind::NotFound.into());
        let outside = Outside { variables, current_dir: PathBuf::new(), read: &read };
        let sources = Sources::gather(Flags::default(), outside);
        assert_eq!(sources.problems, [Problem::new("NGIT_DOMAIN (environment)", "is not valid UTF-8")]);
    }
}
