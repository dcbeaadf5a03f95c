#!/usr/bin/env python3
"""Uses the relay with two nostr libraries for Python: nostr-sdk (bindings of rust-nostr) and aionostr (with websockets).

The server must accept all events (POLICY=open).
"""

import asyncio
import importlib.metadata
import json
import os
import sys
import time
import urllib.request
from collections.abc import Callable
from datetime import timedelta

import nostr_sdk
from aionostr.event import Event as AioEvent
from aionostr.key import PrivateKey
from aionostr.relay import Relay
from nostr_sdk import (
    ClientBuilder,
    EventBuilder,
    Filter,
    Keys,
    Kind,
    NegentropyItem,
    NostrSdkError,
    RelayInformationDocument,
    RelayUrl,
    ReqTarget,
    SignerAuthenticator,
    SyncOptions,
    Tag,
    Timestamp,
)
from results import Results, Unsupported

ORIGIN = os.environ["GRASPD_ORIGIN"]
RELAY = ORIGIN.replace("http://", "ws://")
TIMEOUT_SECS = 20
TIMEOUT = timedelta(seconds=TIMEOUT_SECS)
# Times of the events, in the past.
START = 1_700_000_000


class NostrSdk:
    """nostr-sdk. Events are its own type; ids are hex."""

    name = "nostr-sdk"

    def __init__(self):
        self.keys = Keys.generate()
        self.author = self.keys.public_key().to_hex()
        self.loop = asyncio.new_event_loop()
        # The library calls the authenticator from a thread of its own.
        nostr_sdk.uniffi_set_event_loop(self.loop)
        self.client = self.wait(self.connect(ClientBuilder()))

    def wait(self, future):
        return self.loop.run_until_complete(asyncio.wait_for(future, TIMEOUT_SECS))

    async def connect(self, builder):
        client = builder.build()
        await client.add_relay(RelayUrl.parse(RELAY))
        await client.try_connect(timeout=TIMEOUT)
        return client

    async def relay(self):
        return await self.client.relay(RelayUrl.parse(RELAY))

    def sign(self, kind, at, tags=(), content=""):
        builder = EventBuilder(Kind(kind), content).tags([Tag.parse(list(tag)) for tag in tags])
        return builder.custom_created_at(Timestamp.from_secs(at)).finalize(self.keys)

    def id(self, event):
        return event.id().to_hex()

    def publish(self, event):
        output = self.wait(self.client.send_event(event))
        assert output.success, f"not accepted: {output.failed}"

    def publish_authenticated(self, event):
        async def publish():
            client = await self.connect(ClientBuilder().authenticator(SignerAuthenticator(self.keys)))
            output = await client.send_event(event)
            await client.shutdown()
            assert output.success, f"not accepted: {output.failed}"

        self.wait(publish())

    def query(self, **wanted):
        target = ReqTarget.auto([Filter.from_json(json.dumps(wanted))])
        return [self.id(event) for event in self.wait(self.client.fetch_events(target, timeout=TIMEOUT))]

    def receive_live(self, publish: Callable[[], None], **wanted):
        """Subscribes, publishes on another connection, and returns the first event that arrives."""

        async def receive():
            notifications = self.client.notifications()
            await self.client.subscribe(ReqTarget.auto([Filter.from_json(json.dumps(wanted))]))
            await self.loop.run_in_executor(None, publish)
            while True:
                notification = await notifications.next()
                if notification.is_NEW_EVENT():
                    return self.id(notification.event)

        return self.wait(receive())

    def count(self, **wanted):
        """Counts on the relay. The library waits for the answer only after it has sent the request, and misses an answer that
        arrives in between; it is asked again then."""

        async def count():
            return await (await self.relay()).count_events(Filter.from_json(json.dumps(wanted)), timedelta(seconds=1))

        for _ in range(10):
            try:
                return self.wait(count())
            except NostrSdkError:
                pass
        raise AssertionError("no answer to COUNT")

    def reconcile(self, known, **wanted):
        """Returns the ids that the relay has and that are not among `known`, a list of events."""

        async def reconcile():
            items = [NegentropyItem(id=event.id(), timestamp=event.created_at()) for event in known]
            options = SyncOptions().dry_run()
            return await (await self.relay()).sync(Filter.from_json(json.dumps(wanted)), items=items, opts=options)

        return [id.to_hex() for id in self.wait(reconcile()).remote]

    def information(self):
        request = urllib.request.Request(ORIGIN, headers={"Accept": "application/nostr+json"})
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECS) as response:
            document = RelayInformationDocument.from_json(response.read().decode())
        return document.supported_nips()

    def close(self):
        self.wait(self.client.shutdown())


class Aionostr:
    """aionostr. Queries, counts and NIP-11 have no function of their own; the parts that it has are used for them."""

    name = "aionostr"

    def __init__(self):
        self.key = PrivateKey()
        self.author = self.key.public_key.hex()
        self.loop = asyncio.new_event_loop()
        self.relay = Relay(RELAY)
        self.wait(self.relay.connect())
        self.next_id = 0

    def wait(self, future):
        return self.loop.run_until_complete(asyncio.wait_for(future, TIMEOUT_SECS))

    def sign(self, kind, at, tags=(), content=""):
        tags = [list(tag) for tag in tags]
        event = AioEvent(kind=kind, created_at=at, tags=tags, content=content, pubkey=self.author)
        event.sign(self.key.hex())
        return event

    def id(self, event):
        return event.id

    async def send(self, relay, event):
        await relay.add_event(event)
        # `check_response` would return the id of the answer only. Answers to other messages (AUTH) are left out.
        while (answer := await relay.event_adds.get())[1] != event.id:
            pass
        assert answer[2] is True, f"not accepted: {answer[3]}"

    def publish(self, event):
        self.wait(self.send(self.relay, event))

    def publish_authenticated(self, event):
        async def publish():
            relay = Relay(RELAY, private_key=self.key.hex())
            await relay.connect()
            # The challenge comes with the rejection. The library answers the challenge; it does not send the event again.
            await relay.add_event(event)
            while not (await relay.event_adds.get())[2]:
                pass
            await self.send(relay, event)
            await relay.close()

        self.wait(publish())

    async def subscribe(self, wanted):
        self.next_id += 1
        id = f"{self.name}-{self.next_id}"
        return id, await self.relay.subscribe(id, wanted)

    async def stored(self, wanted):
        """Returns the id of a subscription, its queue, and the stored events."""
        id, queue = await self.subscribe(wanted)
        events = []
        # The library puts None into the queue at EOSE.
        while (event := await queue.get()) is not None:
            assert event.verify(), "wrong signature"
            events.append(event.id)
        return id, queue, events

    def query(self, **wanted):
        async def query():
            id, _, events = await self.stored(wanted)
            await self.relay.unsubscribe(id)
            return events

        return self.wait(query())

    def receive_live(self, publish, **wanted):
        async def receive():
            _, queue, _ = await self.stored(wanted)
            await self.loop.run_in_executor(None, publish)
            return (await queue.get()).id

        return self.wait(receive())

    def count(self, **wanted):
        raise Unsupported("aionostr has no COUNT (NIP-45)")

    def reconcile(self, known, **wanted):
        raise Unsupported("aionostr has no negentropy (NIP-77)")

    def information(self):
        raise Unsupported("aionostr has no information documents (NIP-11)")

    def close(self):
        self.wait(self.relay.close())


class Scenario:
    """The cases of one library."""

    def __init__(self, client, publisher):
        self.client = client
        # Another client, whose events arrive live.
        self.publisher = publisher
        self.notes = [
            client.sign(1, START + index, [("t", f"topic {index % 2}"), ("p", "ab" * 32)], f'note {index} "\\\n\t🚀')
            for index in range(6)
        ]
        self.ids = [client.id(note) for note in self.notes]

    def newest_first(self, *indexes):
        return [self.ids[index] for index in sorted(indexes, reverse=True)]

    def publish(self):
        for note in self.notes:
            self.client.publish(note)
        # Again: answered with OK true and `duplicate:`.
        self.client.publish(self.notes[0])

    def query_by_id(self):
        assert self.client.query(ids=self.ids[2:4]) == self.newest_first(2, 3)

    def query_by_kind_and_author(self):
        assert self.client.query(kinds=[1], authors=[self.client.author]) == self.newest_first(*range(6))
        assert self.client.query(kinds=[7], authors=[self.client.author]) == []

    def query_by_tag(self):
        wanted = {"authors": [self.client.author], "#t": ["topic 1"]}
        assert self.client.query(**wanted) == self.newest_first(1, 3, 5)

    def query_by_time(self):
        wanted = {"authors": [self.client.author], "since": START + 2, "until": START + 4, "limit": 2}
        assert self.client.query(**wanted) == self.newest_first(3, 4)

    def live(self):
        event = self.publisher.sign(1, int(time.time()), content="live")
        received = self.client.receive_live(lambda: self.publisher.publish(event), authors=[self.publisher.author])
        assert received == self.publisher.id(event)

    def count(self):
        assert self.client.count(kinds=[1], authors=[self.client.author]) == len(self.notes)

    def replaceable(self):
        versions = [self.client.sign(10002, START + index, content=str(index)) for index in range(2)]
        for version in versions:
            self.client.publish(version)
        found = self.client.query(kinds=[10002], authors=[self.client.author])
        assert found == [self.client.id(versions[1])]

    def rejection(self):
        """An event that has expired (NIP-40) is rejected with a reason."""
        event = self.client.sign(1, START, [("expiration", str(START + 1))], "expired")
        try:
            self.client.publish(event)
        except AssertionError as error:
            assert "invalid: " in str(error), error
        else:
            raise AssertionError("the event was accepted")

    def reconcile(self):
        known = self.notes[:2]
        missing = self.client.reconcile(known, kinds=[1], authors=[self.client.author])
        assert sorted(missing) == sorted(self.ids[2:]), missing

    def protected(self):
        """A protected event (NIP-70) is accepted after authentication (NIP-42)."""
        event = self.client.sign(1, START + 100, [("-",)], "protected")
        self.client.publish_authenticated(event)
        assert self.client.query(ids=[self.client.id(event)]) == [self.client.id(event)]

    def deletion(self):
        self.client.publish(self.client.sign(5, START + 200, [("e", self.ids[5])]))
        assert self.client.query(ids=[self.ids[5]]) == []

    def information(self):
        supported = self.client.information()
        assert {1, 9, 11, 34, 40, 42, 45, 77} <= set(supported), supported

    CASES = (
        ("publish", publish),
        ("query by id", query_by_id),
        ("query by kind and author", query_by_kind_and_author),
        ("query by tag", query_by_tag),
        ("query by time, with limit", query_by_time),
        ("live subscription", live),
        ("count", count),
        ("replaceable event", replaceable),
        ("rejection with a reason", rejection),
        ("negentropy", reconcile),
        ("authentication for a protected event", protected),
        ("deletion", deletion),
        ("information document", information),
    )


def main() -> None:
    names = ("nostr-sdk", "aionostr", "websockets")
    results = Results({name: importlib.metadata.version(name) for name in names})
    for library, other in ((NostrSdk, Aionostr), (Aionostr, NostrSdk)):
        client, publisher = library(), other()
        scenario = Scenario(client, publisher)
        for name, function in Scenario.CASES:
            results.run(f"{client.name}: {name}", lambda function=function: function(scenario))
        client.close()
        publisher.close()
    # The tasks of aionostr do not end by themselves.
    sys.stdout.flush()
    os._exit(0)


main()
