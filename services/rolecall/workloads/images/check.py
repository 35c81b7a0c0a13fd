"""What only a node can see of a job's images, before its gang meets. Torch-free."""

from rolecall.workloads.images.params import Images
from rolecall.workloads.images.sources import check_source


def check_images(images: Images) -> None:
    """Raises `InputError` unless every source is there and looks like labelled images."""
    for source in images.sources.values():
        check_source(source)
