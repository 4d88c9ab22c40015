# SPDX-License-Identifier: Apache-2.0
"""Runs slang on the arguments of its command line, in a process of its own: it prints by itself."""

import sys

from pyslang.driver import Driver


def main(arguments: list[str]) -> int:
    driver = Driver()
    driver.addStandardArgs()
    if not driver.parseCommandLine(" ".join(["slang", *arguments])):
        return 2
    read = driver.processOptions() and driver.parseAllSources()
    compilation = driver.createCompilation()
    read = driver.reportParseDiags() and read
    driver.reportCompilation(compilation, True)
    driver.runAnalysis(compilation)
    return 0 if driver.reportDiagnostics(True) and read else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
