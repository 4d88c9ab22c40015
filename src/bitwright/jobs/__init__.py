# SPDX-License-Identifier: Apache-2.0
"""Many independent jobs, on processes of this machine or on a Ray cluster; none is lost."""

from bitwright.jobs.job import JOB_FILES, Job, JobFailure, JobResult
from bitwright.jobs.runner import OnResult, check_options, run_jobs

__all__ = [
    "JOB_FILES",
    "Job",
    "JobFailure",
    "JobResult",
    "OnResult",
    "check_options",
    "run_jobs",
]
