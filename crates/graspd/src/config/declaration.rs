//! What the declaration of a setting consists of, and how it is read.
//!
//! A declaration is an entry of [`settings!`]: a doc comment, a field, and a [`Setting`], which has the name, the allowed
//! values, the default, and whether `graspd reload` applies a change:
//!
//! ```text
//! /// Maximum size of one push, in bytes.
//! max_push_bytes: u64 = bytes("GIT_MAX_PUSH_BYTES", 1 << 10, 1 << 40).default("2147483648").reloads();
//! ```
//!
//! The doc comment is the help text. `section "Git";` begins a section of the help and of docs/settings.md. A field that
//! is `Group` contains settings that are declared with its type. A default that depends on other settings is described by
//! `.derived("…")` and computed in [`resolve`](super::resolve). The kinds of settings are at the end of this file.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use super::problem::{ConfigError, SettingOrigin, quote};
use super::sources::{FileAccess, SettingSources};
use super::{Config, EffectiveSetting, Secret, lists, parse, quantity};

/// Prefix of all environment variables of this program.
pub(crate) const PREFIX: &str = "NGIT_";

/// The descriptions of all settings, in the order of their declarations. Flags, help texts and docs/settings.md are made
/// from them.
pub(crate) static SETTINGS: LazyLock<Vec<SettingInfo>> = LazyLock::new(|| {
    let sources = SettingSources::default();
    let mut reader = SettingReader::new(&sources);
    Config::read(&mut reader);
    reader.declared
});

/// Returns the description of a setting by its name, such as `BIND_ADDRESS`.
pub(crate) fn find(name: &str) -> Option<&'static SettingInfo> {
    SETTINGS.iter().find(|setting| setting.name == name)
}

/// The description of one setting.
#[derive(Default)]
pub(crate) struct SettingInfo {
    /// Name in capitals. The variable, the flag and the file key are derived from it.
    pub(crate) name: &'static str,
    /// Heading in the help and in the reference.
    pub(crate) section: &'static str,
    /// One to three sentences for the help and the reference. The first one is the short help of the flag.
    pub(crate) help: String,
    /// Placeholder of the value in the help.
    pub(crate) placeholder: &'static str,
    /// The allowed values, if they can be stated shortly.
    pub(crate) allowed: Option<String>,
    /// Text that is parsed if the setting is given nowhere.
    pub(crate) default: &'static str,
    /// Whether the default is derived from other settings. `default` then describes it for the help.
    pub(crate) is_derived: bool,
    /// A secret is never shown, and has no flag, because every user of the machine can read the arguments of a process.
    pub(crate) is_secret: bool,
    /// Whether the flag can be given several times.
    pub(crate) can_repeat: bool,
    /// Whether `graspd reload` applies a change; otherwise it needs a restart.
    pub(crate) can_reload: bool,
}

impl SettingInfo {
    /// Returns the environment variable, such as `NGIT_BIND_ADDRESS`.
    pub(crate) fn variable(&self) -> String {
        format!("{PREFIX}{}", self.name)
    }

    /// Returns the key in the TOML file, such as `bind_address`.
    pub(crate) fn key(&self) -> String {
        self.name.to_ascii_lowercase()
    }

    /// Returns the flag without its dashes, such as `bind-address`; `None` for secrets.
    pub(crate) fn flag(&self) -> Option<String> {
        (!self.is_secret).then(|| self.key().replace('_', "-"))
    }
}

/// Parser of a value. It may read files, for settings that name one.
type Parse<T> = Box<dyn Fn(&str, &FileAccess) -> Result<T, String>>;

/// The declaration of one setting with a value of type `T`.
pub(crate) struct Setting<T> {
    info: SettingInfo,
    parse: Parse<T>,
    /// Value if the default is derived from other settings, or if the given value is invalid. In the second case it is
    /// never used, because the errors are returned instead of the settings.
    unset: T,
}

impl<T: 'static> Setting<T> {
    /// Declares a setting with any parser of text.
    pub(super) fn new(name: &'static str, placeholder: &'static str, parse: fn(&str) -> Result<T, String>) -> Self
    where
        T: Default,
    {
        Self::with(name, placeholder, T::default(), move |text, _| parse(text))
    }

    pub(super) fn with(
        name: &'static str,
        placeholder: &'static str,
        unset: T,
        parse: impl Fn(&str, &FileAccess) -> Result<T, String> + 'static,
    ) -> Self {
        Self { info: SettingInfo { name, placeholder, ..SettingInfo::default() }, parse: Box::new(parse), unset }
    }

    /// Sets the text that is parsed if the setting is given nowhere. Without it, that is an empty text.
    pub(super) fn default(mut self, default: &'static str) -> Self {
        self.info.default = default;
        self
    }

    /// Says that the default is derived from other settings, with a description of it for the help.
    pub(super) fn derived(mut self, description: &'static str) -> Self {
        self.info.is_derived = true;
        self.default(description)
    }

    /// Says that `graspd reload` applies a change.
    pub(super) fn reloads(mut self) -> Self {
        self.info.can_reload = true;
        self
    }

    /// Says that the flag can be given several times.
    pub(super) fn repeats(mut self) -> Self {
        self.info.can_repeat = true;
        self
    }

    fn allowed(mut self, text: String) -> Self {
        self.info.allowed = Some(text);
        self
    }

    /// Converts the parsed value.
    pub(super) fn map<U: Default>(self, convert: impl Fn(T) -> U + 'static) -> Setting<U> {
        let parse = Box::new(move |text: &str, files: &FileAccess| (self.parse)(text, files).map(&convert));
        Setting { info: self.info, parse, unset: U::default() }
    }

    /// Reads the setting, or its default, and records errors.
    pub(super) fn read(self, help: &str, reader: &mut SettingReader<'_>) -> T {
        let info = SettingInfo { section: reader.section, help: help.trim().to_owned(), ..self.info };
        let (text, origin) = match reader.sources.texts.get(info.name) {
            Some((text, origin)) => (Some(text.as_str()), origin.clone()),
            None => ((!info.is_derived).then_some(info.default), SettingOrigin::Default),
        };
        let (value, secret) = match text {
            Some(text) if info.is_secret => ("(hidden)".to_owned(), Some(Secret::new(text.trim()))),
            text => (text.unwrap_or_default().to_owned(), None),
        };
        let parsed = match text.map(|text| (self.parse)(text, &reader.sources.files)) {
            Some(Ok(parsed)) => parsed,
            Some(Err(message)) => {
                reader.errors.push(ConfigError::new(origin.location(&info), message));
                self.unset
            }
            None => self.unset,
        };
        reader.effective.push(EffectiveSetting { name: info.name, value, origin, secret });
        reader.declared.push(info);
        parsed
    }

    /// Copies the new value if the setting can change without a restart.
    pub(super) fn reload(self, current: &mut T, new: &T)
    where
        T: Clone,
    {
        if self.info.can_reload {
            current.clone_from(new);
        }
    }
}

/// Reads the settings one after the other, and collects errors.
pub(crate) struct SettingReader<'a> {
    sources: &'a SettingSources,
    /// Heading of the settings that follow.
    pub(super) section: &'static str,
    pub(super) declared: Vec<SettingInfo>,
    pub(super) effective: Vec<EffectiveSetting>,
    pub(super) errors: Vec<ConfigError>,
}

impl<'a> SettingReader<'a> {
    pub(super) fn new(sources: &'a SettingSources) -> Self {
        Self { sources, section: "", declared: Vec::new(), effective: Vec::new(), errors: sources.errors.clone() }
    }
}

/// Settings that are read together.
pub(crate) trait SettingGroup {
    fn read(reader: &mut SettingReader<'_>) -> Self;

    /// Copies the settings that can change without a restart.
    fn reload(&mut self, new: &Self);
}

/// The declaration of a field that is a group of settings.
pub(super) struct Group;

impl Group {
    pub(super) fn read<G: SettingGroup>(self, _: &str, reader: &mut SettingReader<'_>) -> G {
        G::read(reader)
    }

    pub(super) fn reload<G: SettingGroup>(self, current: &mut G, new: &G) {
        current.reload(new);
    }
}

/// The last field of [`Config`] takes what the fields before it have recorded.
impl SettingGroup for Vec<EffectiveSetting> {
    fn read(reader: &mut SettingReader<'_>) -> Self {
        std::mem::take(&mut reader.effective)
    }

    fn reload(&mut self, _: &Self) {}
}

/// Declares a struct and its settings, or the settings of a struct that exists (`impl`).
macro_rules! settings {
    (
        $(#[$meta:meta])*
        struct $name:ident {
            $($(section $section:literal;)? $(#[doc = $help:literal])+ $field:ident: $type:ty = $setting:expr;)+
        }
    ) => {
        $(#[$meta])*
        #[allow(rustdoc::broken_intra_doc_links, reason = "help texts are not Markdown")]
        pub(crate) struct $name {
            $($(#[doc = $help])+ pub(crate) $field: $type,)+
        }

        settings! {
            impl $name { $($(section $section;)? $(#[doc = $help])+ $field: $type = $setting;)+ }
        }
    };
    (
        impl $name:ident {
            $($(section $section:literal;)? $(#[doc = $help:literal])+ $field:ident: $type:ty = $setting:expr;)+
        }
    ) => {
        impl SettingGroup for $name {
            fn read(reader: &mut SettingReader<'_>) -> Self {
                $($(reader.section = $section;)? let $field: $type = $setting.read(concat!($($help),+), reader);)+
                Self { $($field),+ }
            }

            fn reload(&mut self, new: &Self) {
                $($setting.reload(&mut self.$field, &new.$field);)+
            }
        }
    };
}
pub(super) use settings;

// Kinds of settings.

/// A whole number within a range, both ends included.
pub(super) fn number<T: TryFrom<u64> + Default + 'static>(name: &'static str, min: u64, max: u64) -> Setting<T> {
    quantity(name, "NUMBER", &quantity::COUNT, min, max)
}

/// A number of bytes, or a size such as `50GB`.
pub(super) fn bytes<T: TryFrom<u64> + Default + 'static>(name: &'static str, min: u64, max: u64) -> Setting<T> {
    quantity(name, "SIZE", &quantity::BYTES, min, max)
}

/// A number of seconds, or a time such as `1h30m`.
pub(super) fn seconds(name: &'static str, min: u64, max: u64) -> Setting<Duration> {
    quantity(name, "TIME", &quantity::SECONDS, min, max).map(Duration::from_secs)
}

/// A number of milliseconds, or a time such as `10s`.
pub(super) fn milliseconds(name: &'static str, min: u64, max: u64) -> Setting<Duration> {
    quantity(name, "TIME", &quantity::MILLISECONDS, min, max).map(Duration::from_millis)
}

fn quantity<T: TryFrom<u64> + Default + 'static>(
    name: &'static str,
    placeholder: &'static str,
    unit: &'static quantity::Unit,
    min: u64,
    max: u64,
) -> Setting<T> {
    let parse = move |text: &str, _: &FileAccess| unit.parse(text, min, max);
    Setting::with(name, placeholder, T::default(), parse).allowed(format!("{min} to {max}"))
}

/// One of a few words, each with its meaning.
pub(super) fn choice<T: Copy + 'static>(name: &'static str, words: &'static [(&'static str, T)]) -> Setting<T> {
    let allowed = words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(" or ");
    let expected = allowed.clone();
    let parse = move |text: &str, _: &FileAccess| {
        let found = words.iter().find(|(word, _)| word.eq_ignore_ascii_case(text.trim()));
        found.map(|(_, meaning)| *meaning).ok_or_else(|| format!("{} is not {expected}", quote(text)))
    };
    Setting::with(name, "WORD", words[0].1, parse).allowed(allowed)
}

/// `true` or `false`.
pub(super) fn on_off(name: &'static str) -> Setting<bool> {
    choice(name, &[("true", true), ("false", false)])
}

/// An IP address with a port.
pub(super) fn address(name: &'static str) -> Setting<SocketAddr> {
    Setting::with(name, "IP:PORT", SocketAddr::from(([0; 4], 0)), |text, _| parse::address(text))
}

/// A folder on this machine, as an absolute path.
pub(super) fn folder(name: &'static str) -> Setting<PathBuf> {
    Setting::with(name, "FOLDER", PathBuf::new(), |text, files| parse::folder(text, &files.current_dir))
}

/// A secret: it is hidden and has no flag.
pub(super) fn secret(name: &'static str, parse: fn(&str) -> Result<Option<Secret>, String>) -> Setting<Option<Secret>> {
    let mut setting = Setting::new(name, "", parse);
    setting.info.is_secret = true;
    setting
}

/// A moderation list: entries separated by commas, or `@` and the path of a file with one entry per line.
pub(super) fn list<T: Default + 'static>(
    name: &'static str,
    parse: fn(&[lists::Entry<'_>]) -> Result<T, String>,
) -> Setting<T> {
    Setting::with(name, "ENTRY,…|@FILE", T::default(), move |text, files| lists::read(text, files, parse))
        .allowed("entries, or @ and the path of a file with one per line and # comments".to_owned())
}

/// Returns a limit for which zero means unlimited.
pub(super) fn limit(number: u64) -> Option<u64> {
    (number > 0).then_some(number)
}
