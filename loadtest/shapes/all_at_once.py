"""A load shape that starts all buyers at the same time."""

from __future__ import annotations

from locust import LoadTestShape


class AllAtOnce(LoadTestShape):
    """Starts all `--users` within the first second, and ends the test when every buyer is done."""

    use_common_options = True

    def tick(self) -> tuple[int, float] | None:
        if self.runner is None or self.runner.environment.parsed_options is None:
            return None
        # In a very short burst, Locust may never count a user. So look at the attempts to see whether the burst has
        # started.
        started = self.runner.environment.burst_results.attempted > 0
        if started and self.runner.user_count == 0:
            return None
        users = self.runner.environment.parsed_options.num_users or 50
        return users, users
