#!/usr/bin/env python3
"""Clones and pushes with independent git clients: git (every version given), dulwich, pygit2, isomorphic-git, gitoxide.

Usage: git_clients.py CLIENT…, where CLIENT is a path of git, `dulwich`, `pygit2`, `isomorphic-git`, or `gitoxide=PROGRAM`.
Every client runs the same cases against a repository of its own. What it has pushed is checked with the first git in PATH: a new
clone must have the expected refs and pass `git fsck`.
"""

import io
import os
import pathlib
import subprocess
import sys
import tempfile

import dulwich
import pygit2
from dulwich import porcelain
from maintainer import Maintainer
from results import Results, Unsupported

ORIGIN = os.environ["GRASPD_ORIGIN"]
HERE = pathlib.Path(__file__).parent
COMMITS = 120
MAIN = "refs/heads/main"
TIMEOUT_SECS = 60

GIT_ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
} | {
    f"GIT_{role}_{name}": value
    for role in ("AUTHOR", "COMMITTER")
    for name, value in (("NAME", "Test Author"), ("EMAIL", "author@test.example"), ("DATE", "1600000000 +0000"))
}


def run(*command: str | pathlib.Path, environment: dict[str, str] | None = None) -> str:
    """Runs a command and returns its output; raises an exception with all its output if it fails."""
    done = subprocess.run(
        [str(word) for word in command],
        env=environment or GIT_ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=TIMEOUT_SECS,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{command} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout.strip()


def git(folder: pathlib.Path, *arguments: str) -> str:
    """Runs the first git in PATH in a folder."""
    return run("git", "-C", folder, *arguments)


class Git:
    """A git program."""

    def __init__(self, program: str):
        self.program = program
        self.version = run(program, "version").removeprefix("git version ")
        # The same name on every machine, whatever its exact version.
        self.name = "git 2.39" if self.version.startswith("2.39.") else "git newer"

    def clone(self, url, folder, depth=None, blobs=True):
        options = [f"--depth={depth}"] if depth else []
        options += [] if blobs else ["--filter=blob:none", "--no-checkout"]
        run(self.program, "clone", "--quiet", *options, url, folder)

    def fetch(self, folder):
        run(self.program, "-C", folder, "fetch", "--quiet", "origin")

    def push(self, folder, url, source, destination):
        run(self.program, "-C", folder, "push", url, f"{source}:{destination}")


class Dulwich:
    """The Python implementation of git."""

    name = "dulwich"
    version = ".".join(str(part) for part in dulwich.__version__[:3])

    def clone(self, url, folder, depth=None, blobs=True):
        porcelain.clone(
            url, folder, depth=depth, filter_spec=None if blobs else "blob:none", checkout=blobs, errstream=io.BytesIO()
        ).close()

    def fetch(self, folder):
        porcelain.fetch(str(folder), "origin", outstream=io.StringIO(), errstream=io.BytesIO())

    def push(self, folder, url, source, destination):
        errors = io.BytesIO()
        result = porcelain.push(str(folder), url, f"{source}:{destination}", outstream=io.BytesIO(), errstream=errors)
        rejected = {ref: text for ref, text in (result.ref_status or {}).items() if text}
        assert not rejected, f"{rejected} {errors.getvalue().decode()}"


class Pygit2:
    """libgit2."""

    name = "pygit2"
    version = f"{pygit2.__version__} (libgit2 {pygit2.LIBGIT2_VERSION})"

    def clone(self, url, folder, depth=None, blobs=True):
        if not blobs:
            raise Unsupported("libgit2 has no partial clones")
        pygit2.clone_repository(url, str(folder), depth=depth or 0)

    def fetch(self, folder):
        pygit2.Repository(str(folder)).remotes["origin"].fetch()

    def push(self, folder, url, source, destination):
        rejected = {}

        class Callbacks(pygit2.RemoteCallbacks):
            """Collects the refs that the server rejects."""

            def push_update_reference(self, refname, message):
                if message:
                    rejected[refname] = message

        remote = pygit2.Repository(str(folder)).remotes.create_anonymous(url)
        remote.push([f"{source}:{destination}"], callbacks=Callbacks())
        assert not rejected, rejected


class IsomorphicGit:
    """The JavaScript implementation of git, through isomorphic_git.mjs."""

    name = "isomorphic-git"

    def __init__(self):
        self.version = self.script("version")

    @staticmethod
    def script(*arguments):
        return run("node", HERE / "isomorphic_git.mjs", *arguments, environment=dict(os.environ))

    def clone(self, url, folder, depth=None, blobs=True):
        if not blobs:
            raise Unsupported("isomorphic-git has no partial clones")
        self.script("clone", url, folder, str(depth or 0))

    def fetch(self, folder):
        self.script("fetch", folder)

    def push(self, folder, url, source, destination):
        self.script("push", folder, url, source, destination)


class Gitoxide:
    """The Rust implementation of git, through the program in the folder gitoxide."""

    name = "gitoxide"

    def __init__(self, program: str):
        self.program = program
        self.version = run(program, "version")

    def clone(self, url, folder, depth=None, blobs=True):
        if not blobs:
            raise Unsupported("gitoxide has no partial clones")
        run(self.program, "clone", url, folder, str(depth or 0))

    def fetch(self, folder):
        run(self.program, "fetch", folder)

    def push(self, folder, url, source, destination):
        raise Unsupported("gitoxide cannot push")


class Scenario:
    """The cases of one client. They build on each other, in the order of `CASES`."""

    def __init__(self, client, folder: pathlib.Path):
        self.client = client
        self.folder = folder
        self.source = folder / "source"
        self.repository = Maintainer(ORIGIN, client.name.replace(" ", "-"))
        self.refs: dict[str, str] = {}
        self.full = folder / "full"
        create_history(self.source)
        self.repository.announce()

    def oid(self, revision: str) -> str:
        return git(self.source, "rev-parse", "--verify", revision)

    def commit(self, text: str) -> None:
        (self.source / "file").write_text(text, encoding="utf-8")
        git(self.source, "add", "--all")
        git(self.source, "commit", "--quiet", "--message", text)

    def push(self, source: str, destination: str, client=None) -> None:
        """Publishes the state that the push leads to, pushes, and checks the result."""
        refs = dict(self.refs)
        if source:
            refs[destination] = self.oid(source)
        else:
            del refs[destination]
        self.repository.declare(refs)
        try:
            (client or self.client).push(self.source, self.repository.url, source, destination)
        except Unsupported:
            Git("git").push(self.source, self.repository.url, source, destination)
            self.refs = refs
            raise
        self.refs = refs
        self.check_server()

    def check_server(self) -> None:
        """Checks the refs and the objects of the repository with a new clone."""
        with tempfile.TemporaryDirectory(dir=self.folder) as clone:
            git(self.folder, "clone", "--quiet", "--mirror", self.repository.url, clone)
            lines = git(pathlib.Path(clone), "for-each-ref", "--format=%(refname) %(objectname)").splitlines()
            found = dict(line.split() for line in lines)
            assert found == self.refs, f"the server has {found} instead of {self.refs}"
            git(pathlib.Path(clone), "fsck", "--full", "--strict")

    def push_first(self):
        self.push(MAIN, MAIN)

    def push_fast_forward(self):
        self.commit("fast-forward")
        self.push(MAIN, MAIN)

    def push_new_branch(self):
        git(self.source, "branch", "feature", "main~3")
        self.push("refs/heads/feature", "refs/heads/feature")

    def push_annotated_tag(self):
        git(self.source, "tag", "--annotate", "--message", "version 1", "v1", "main~2")
        self.push("refs/tags/v1", "refs/tags/v1")

    def push_deletion(self):
        """A state that only removes a ref needs no push: the server may apply it before the client asks for the refs. Then
        there is nothing to delete, which some clients report as an error."""
        branch = "refs/heads/feature"
        try:
            self.push("", branch)
        except Unsupported:
            raise
        except Exception:  # pylint: disable=broad-except
            if branch in git(self.folder, "ls-remote", self.repository.url):
                raise
            self.refs.pop(branch, None)
            self.check_server()

    def push_without_state(self):
        """A push that no signed state authorises is rejected, and the client shows the reason."""
        self.commit("without state")
        try:
            self.client.push(self.source, self.repository.url, MAIN, MAIN)
        except Unsupported:
            raise
        except Exception as error:  # pylint: disable=broad-except
            assert "E-STATE-" in str(error), f"the error has no reason: {error}"
        else:
            raise AssertionError("the push was accepted")
        finally:
            git(self.source, "reset", "--quiet", "--hard", "main~1")
        self.check_server()

    def clone_full(self):
        self.client.clone(self.repository.url, self.full)
        git(self.full, "fsck", "--full", "--strict")
        assert git(self.full, "rev-parse", "HEAD") == self.refs[MAIN]
        assert git(self.full, "rev-list", "--count", "HEAD") == git(self.source, "rev-list", "--count", MAIN)
        assert git(self.full, "rev-parse", "--verify", "refs/tags/v1") == self.refs["refs/tags/v1"]
        assert (self.full / "file").read_text(encoding="utf-8") == (self.source / "file").read_text(encoding="utf-8")

    def clone_shallow(self):
        folder = self.folder / "shallow"
        self.client.clone(self.repository.url, folder, depth=1)
        assert git(folder, "rev-parse", "HEAD") == self.refs[MAIN]
        assert git(folder, "rev-list", "--count", "HEAD") == "1"
        assert (folder / "file").exists()
        git(folder, "fsck", "--full")

    def clone_partial(self):
        folder = self.folder / "partial"
        self.client.clone(self.repository.url, folder, blobs=False)
        commits = git(self.source, "rev-list", "--count", MAIN)
        assert git(folder, "rev-list", "--count", self.refs[MAIN]) == commits
        listed = git(folder, "rev-list", "--objects", "--missing=print", self.refs[MAIN]).splitlines()
        missing = [line for line in listed if line.startswith("?")]
        assert len(missing) > COMMITS, f"only {len(missing)} blobs are missing"

    def fetch(self):
        """Another client pushes; this one fetches into its full clone."""
        self.commit("for the fetch")
        self.push(MAIN, MAIN, Git("git"))
        self.client.fetch(self.full)
        assert git(self.full, "rev-parse", "refs/remotes/origin/main") == self.refs[MAIN]
        git(self.full, "fsck", "--full", "--strict")

    CASES = (
        ("push into an empty repository", push_first),
        ("push a fast-forward", push_fast_forward),
        ("push a new branch", push_new_branch),
        ("push an annotated tag", push_annotated_tag),
        ("push without a state", push_without_state),
        ("clone, full", clone_full),
        ("clone, shallow", clone_shallow),
        ("clone, partial", clone_partial),
        ("fetch", fetch),
        ("push a deletion", push_deletion),
    )


def create_history(folder: pathlib.Path) -> None:
    """Creates a work tree with `COMMITS` commits, folders and a file that git stores as deltas."""
    run("git", "init", "--quiet", "--initial-branch=main", folder)
    stream = io.StringIO()
    for index in range(COMMITS):
        lines = "".join(f"line {line}\n" for line in range(index * 7 % 400, 400)) + f"version {index}\n"
        stream.write(f"commit {MAIN}\ncommitter Test Author <author@test.example> {1_600_000_000 + index} +0000\n")
        stream.write(f"data {len(f'commit {index}')}\ncommit {index}\n")
        for path in ("file", f"folder/{index % 10}/file {index}"):
            stream.write(f"M 100644 inline {path}\ndata {len(lines)}\n{lines}\n")
    subprocess.run(
        ["git", "-C", folder, "fast-import", "--quiet"],
        input=stream.getvalue().encode(),
        env=GIT_ENVIRONMENT,
        check=True,
        timeout=TIMEOUT_SECS,
    )
    git(folder, "reset", "--quiet", "--hard", MAIN)


def create_client(word: str):
    """Returns the client that an argument names."""
    if word.startswith("gitoxide="):
        return Gitoxide(word.removeprefix("gitoxide="))
    by_name = {"dulwich": Dulwich, "pygit2": Pygit2, "isomorphic-git": IsomorphicGit}
    return by_name[word]() if word in by_name else Git(word)


def main() -> None:
    # libgit2 and dulwich read these variables too.
    os.environ.update(GIT_ENVIRONMENT)
    clients = [create_client(word) for word in sys.argv[1:]]
    results = Results({client.name: client.version for client in clients})
    for client in clients:
        with tempfile.TemporaryDirectory() as folder:
            scenario = Scenario(client, pathlib.Path(folder))
            for name, function in Scenario.CASES:
                results.run(f"{client.name}: {name}", lambda function=function: function(scenario))


main()
