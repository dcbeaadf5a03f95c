//! Reading of binary rows, field by field. Numbers are big-endian; a text follows its length in two bytes.

use crate::error::{Result, StoreError};
use crate::schema::KeyHasher;

/// Bytes of the checksum at the beginning of some rows.
pub(crate) const CHECKSUM_BYTES: usize = 8;

/// Unread rest of a row.
pub(crate) struct RowReader<'a>(&'a [u8]);

impl<'a> RowReader<'a> {
    const SHORT: StoreError = StoreError::Damaged("row is too short");

    pub(crate) fn new(row: &'a [u8]) -> Self {
        Self(row)
    }

    /// Returns a reader of a row that begins with a checksum of the rest.
    pub(crate) fn checked(hasher: KeyHasher, row: &'a [u8]) -> Result<Self> {
        let reader = Self::unchecked(row)?;
        let is_intact = row.starts_with(&hasher.checksum(reader.rest()));
        if is_intact { Ok(reader) } else { Err(StoreError::Damaged("row has a wrong checksum")) }
    }

    /// Returns a reader of a row that begins with a checksum, which is not compared.
    pub(crate) fn unchecked(row: &'a [u8]) -> Result<Self> {
        row.get(CHECKSUM_BYTES..).map(Self).ok_or(Self::SHORT)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.0
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk().ok_or(Self::SHORT)?;
        self.0 = rest;
        Ok(*array)
    }

    pub(crate) fn read_u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn text(&mut self) -> Result<&'a str> {
        let len = u16::from_be_bytes(self.array()?);
        let (text, rest) = self.0.split_at_checked(usize::from(len)).ok_or(Self::SHORT)?;
        self.0 = rest;
        std::str::from_utf8(text).map_err(|_| StoreError::Damaged("text in a row is not UTF-8"))
    }
}
