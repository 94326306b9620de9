"""Count words in many files: one task per file, whose counts are added up as they arrive.

Prints::

    3 files, 20 words
    the 5, a 2, river 2
"""

import re
import tempfile
from collections import Counter
from pathlib import Path

from scaler import Client, SchedulerClusterCombo

TEXTS = {
    "hill.txt": "The wind bends the grass on the hill.",
    "river.txt": "A boat leaves the river bank.",
    "bridge.txt": "Under the bridge, a river sings.",
}


def count_words(path: Path) -> Counter[str]:
    return Counter(re.findall(r"\w+", path.read_text().lower()))


with tempfile.TemporaryDirectory() as directory:
    for name, text in TEXTS.items():
        Path(directory, name).write_text(text)

    total: Counter[str] = Counter()
    with SchedulerClusterCombo(n_workers=2) as cluster, Client(address=cluster.get_address()) as client:
        for count in client.imap_unordered(count_words, Path(directory).glob("*.txt")):
            total += count

most = sorted(total.items(), key=lambda item: (-item[1], item[0]))[:3]
print(f"{len(TEXTS)} files, {total.total()} words")
print(", ".join(f"{word} {times}" for word, times in most))
