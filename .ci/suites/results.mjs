// Results of a suite in JavaScript; the file has the format of results.py.
import { writeFileSync } from "node:fs";

/** The library or package cannot do what the case needs. */
export class Unsupported extends Error {}

export class Results {
  #cases = [];

  constructor(versions) {
    this.versions = versions;
  }

  /** Runs a case. An exception is a failure. */
  async run(name, test) {
    const start = Date.now();
    let [result, detail] = ["passed", ""];
    try {
      await test();
    } catch (error) {
      if (error instanceof Unsupported) [result, detail] = ["unsupported", error.message];
      else [result, detail] = ["failed", error?.stack ?? String(error)];
    }
    this.#cases.push({ case: name, result, detail, seconds: (Date.now() - start) / 1000 });
    this.#write();
  }

  /** Writes the file that SUITE_RESULTS names, after every case. */
  #write() {
    writeFileSync(process.env.SUITE_RESULTS, JSON.stringify({ versions: this.versions, cases: this.#cases }, null, 1));
  }
}

/** Rejects if the promise takes longer than `seconds`. */
export async function within(seconds, promise, what) {
  let timer;
  const timeout = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what}: no answer within ${seconds} s`)), seconds * 1000);
  });
  try {
    return await Promise.race([promise, timeout]);
  } finally {
    clearTimeout(timer);
  }
}
