// One operation of isomorphic-git: node isomorphic_git.mjs version | clone URL FOLDER DEPTH | fetch FOLDER |
// push FOLDER URL SOURCE DESTINATION (an empty source deletes the destination).
import fs from "node:fs";
import git from "isomorphic-git";
import http from "isomorphic-git/http/node";

const [operation, ...words] = process.argv.slice(2);
const operations = {
  version: () => console.log(git.version()),
  clone: (url, dir, depth) =>
    git.clone({ fs, http, dir, url, depth: Number(depth) || undefined, singleBranch: Number(depth) > 0 }),
  fetch: (dir) => git.fetch({ fs, http, dir, remote: "origin" }),
  push: (dir, url, source, destination) =>
    git.push({ fs, http, dir, url, ref: source || destination, remoteRef: destination, delete: source === "" }),
};

try {
  await operations[operation](...words);
} catch (error) {
  console.error(error.message, JSON.stringify(error.data ?? {}));
  process.exit(1);
}
