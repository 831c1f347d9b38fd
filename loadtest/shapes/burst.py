"""A burst: everybody at once, until the last has been answered."""

from __future__ import annotations

from locust import LoadTestShape


class Burst(LoadTestShape):
    """All of `--users` in the first second. Ends by itself when every buyer has gone."""

    use_common_options = True

    def __init__(self) -> None:
        super().__init__()
        self.has_begun = False

    def reset_time(self) -> None:
        super().reset_time()
        self.has_begun = False

    def tick(self) -> tuple[int, float] | None:
        if self.runner is None or self.runner.environment.parsed_options is None:
            return None
        if self.runner.user_count:
            self.has_begun = True
        elif self.has_begun:
            return None
        users = self.runner.environment.parsed_options.num_users or 50
        return users, users
