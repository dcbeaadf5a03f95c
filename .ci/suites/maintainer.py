"""A user who announces a repository on the server and signs its states, with the library nostr-sdk."""

import asyncio
import time
from datetime import timedelta

from nostr_sdk import Client, ClientBuilder, Event, EventBuilder, Keys, Kind, RelayUrl, Tag, Timestamp

ANNOUNCEMENT = 30617
STATE = 30618
TIMEOUT = timedelta(seconds=20)


class Maintainer:
    """The owner of one repository."""

    def __init__(self, origin: str, identifier: str):
        self.origin = origin
        self.relay = origin.replace("http://", "ws://")
        self.identifier = identifier
        self.keys = Keys.generate()
        self.url = f"{origin}/{self.keys.public_key().to_bech32()}/{identifier}.git"
        # Each event is newer than the one before, also within a second.
        self.clock = int(time.time()) - 10_000

    def sign(self, kind: int, tags: list[list[str]], content: str = "") -> Event:
        """Signs an event that is newer than all events before."""
        self.clock += 1
        builder = EventBuilder(Kind(kind), content).tags([Tag.parse(tag) for tag in tags])
        return builder.custom_created_at(Timestamp.from_secs(self.clock)).finalize(self.keys)

    def publish(self, event: Event) -> None:
        """Publishes an event; raises an exception if the relay rejects it."""
        asyncio.run(publish(self.relay, event))

    def announce(self) -> None:
        """Publishes the announcement of the repository."""
        tags = [["d", self.identifier], ["name", self.identifier], ["clone", self.url], ["relays", self.relay]]
        self.publish(self.sign(ANNOUNCEMENT, tags))

    def declare(self, refs: dict[str, str]) -> None:
        """Publishes a state with these refs."""
        tags = [["d", self.identifier], *([name, oid] for name, oid in refs.items()), ["HEAD", "ref: refs/heads/main"]]
        self.publish(self.sign(STATE, tags))


async def connect(relay: str) -> Client:
    """Returns a connected client."""
    client = ClientBuilder().build()
    await client.add_relay(RelayUrl.parse(relay))
    await client.try_connect(timeout=TIMEOUT)
    return client


async def publish(relay: str, event: Event) -> None:
    """Publishes one event on a connection of its own."""
    client = await connect(relay)
    try:
        output = await client.send_event(event)
        assert len(output.success) == 1, f"not accepted: {output.failed}"
    finally:
        await client.shutdown()
