"""A burst: everybody at once, until the last has been answered."""

from __future__ import annotations

from locust import LoadTestShape


class Burst(LoadTestShape):
    """All of `--users` in the first second. Ends by itself when every buyer has gone."""

    use_common_options = True

    def tick(self) -> tuple[int, float] | None:
        if self.runner is None or self.runner.environment.parsed_options is None:
            return None
        # A short burst is over before anybody has counted a single user.
        has_begun = self.runner.environment.tally.attempted > 0
        if has_begun and self.runner.user_count == 0:
            return None
        users = self.runner.environment.parsed_options.num_users or 50
        return users, users
