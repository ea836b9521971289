"""Classes of a user: samplers for data.sampler, a maker of rows for data.datagen."""


class Last:
    """The last prompts first."""

    def __init__(self, data_source, data_config):
        self.count = len(data_source)

    def __iter__(self):
        return iter(reversed(range(self.count)))


class First(Last):
    """The first prompts first."""

    def __iter__(self):
        return iter(range(self.count))


class More:
    """One more row after each step."""

    def __init__(self, config):
        self.made = 0

    def generate(self, dataset):
        self.made += 1
        return [{**dataset[0], "prompt": [{"role": "user", "content": f"{self.made}"}]}]


class Most(More):
    """Two more."""

    def generate(self, dataset):
        return [*super().generate(dataset), *super().generate(dataset)]
