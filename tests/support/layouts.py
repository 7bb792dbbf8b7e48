"""Small trees of every dataset of the catalogue in the layouts that it is handed out in, traps included."""

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

Files = dict[str, bytes]


def png(value: int, *, side: int = 8) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), (value % 256, value // 256 % 256, 7)).save(buffer, "PNG")
    return buffer.getvalue()


def tree(*folders: str, per_folder: int = 2) -> Files:
    """Images a.png, b.png in each folder, all different."""
    names = [f"{folder}/{'abcdefgh'[number]}.png" for folder in folders for number in range(per_folder)]
    return {name: png(17 * index) for index, name in enumerate(names)}


def text(*lines: str) -> bytes:
    return "\n".join(lines).encode()


def domainbed_vlcs() -> Files:
    return tree(*(f"VLCS/{d}/{c}" for d in ("Caltech101", "LabelMe", "SUN09", "VOC2007") for c in ("bird", "dog")))


def dassl_vlcs() -> Files:
    """Every split numbers its files anew, and `full` holds all of them once more."""
    domains = ("CALTECH", "LABELME", "PASCAL", "SUN")
    parts = tree(*(f"VLCS/{d}/{s}/{c}" for d in domains for s in ("train", "crossval", "test") for c in ("0", "3")))
    return parts | tree(*(f"VLCS/{d}/full/{c}" for d in domains for c in ("0", "3")), per_folder=6)


def dassl_pacs() -> Files:
    """Labels in the lists count from 1, and the list for tests repeats the others."""
    lists = {
        "pacs/splits/photo_train_kfold.txt": text("photo/dog/a.png 1", "photo/person/a.png 7"),
        "pacs/splits/photo_crossval_kfold.txt": text("photo/dog/b.png 1", "photo/person/b.png 7"),
        "pacs/splits/photo_test_kfold.txt": text(*(f"photo/{c}/{n}.png 1" for c in ("dog", "person") for n in "ab")),
    }
    return tree(*(f"pacs/images/{d}/{c}" for d in ("photo", "sketch") for c in ("dog", "person"))) | lists


def office_home() -> Files:
    domains = ("Art", "Clipart", "Product", "Real World")
    return tree(*(f"OfficeHomeDataset_10072016/{d}/{c}" for d in domains for c in ("Alarm_Clock", "TV")))


def dassl_office_home() -> Files:
    domains = ("art", "clipart", "product", "real_world")
    return tree(
        *(f"office_home_dg/{d}/{s}/{c}" for d in domains for s in ("train", "val") for c in ("Alarm_Clock", "TV"))
    )


def digits() -> Files:
    domains = ("mnist", "mnist_m", "svhn", "syn")
    return tree(*(f"digits_dg/{d}/{s}/{c}" for d in domains for s in ("train", "val") for c in ("0", "7")))


def domainnet() -> Files:
    domains = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
    images = tree(*(f"domain_net/{d}/{c}" for d in domains for c in ("aircraft_carrier", "t-shirt")))
    return images | {
        "domain_net/splits/real_train.txt": text("real/aircraft_carrier/a.png 0", "real/t-shirt/a.png 327")
    }


def minidomainnet() -> Files:
    """The images of all of DomainNet, of which lists of their own choose some and number them anew."""
    domains = ("clipart", "painting", "real", "sketch", "infograph")
    images = tree(*(f"domainnet/{d}/{c}" for d in domains for c in ("t-shirt", "teddy-bear", "zebra")))
    lists: Files = {}
    for domain in domains[:4]:
        for split, name in (("train", "a"), ("test", "b")):
            lines = text(f"{domain}/teddy-bear/{name}.png 10", f"{domain}/zebra/{name}.png 4")
            lists[f"domainnet/splits_mini/{domain}_{split}.txt"] = lines
    return images | lists


def office_caltech() -> Files:
    plain = tree(*(f"office_caltech_10/{d}/{c}" for d in ("amazon", "dslr") for c in ("back_pack", "mug")))
    return plain | tree("office_caltech_10/caltech10/backpack", "office_caltech_10/caltech10/coffee-mug",
                        "office_caltech_10/webcam/images/back_pack", "office_caltech_10/webcam/images/mug")  # fmt: skip


def camelyon() -> Files:
    rows, files = [",patient,node,x_coord,y_coord,tumor,slide,center,split"], {}
    for center in range(5):
        for number in range(4):
            patient, slide = f"{4 + center:03d}", 10 * center + number // 2
            rows.append(f"{len(files)},{patient},4,{number},96,{number % 2},{slide},{center},{number % 2}")
            stem = f"patch_patient_{patient}_node_4_x_{number}_y_96.png"
            files[f"camelyon17_v1.0/patches/patient_{patient}_node_4/{stem}"] = png(31 * len(files))
    return {**files, "camelyon17_v1.0/metadata.csv": text(*rows), "camelyon17_v1.0/RELEASE_v1.0.txt": b""}


def iwildcam() -> Files:
    """Locations that train, are looked at or tested, and classes by number, of which some never occur: there are 182 all the same."""
    rows, files = ["split,location_remapped,sequence_remapped,datetime,y,filename"], {}
    for number in range(24):
        files[f"iwildcam_v2.0/train/{number:04d}.png"] = png(13 * number)
        place = number // 2
        split = ("train", "id_test")[number % 2] if place < 8 else "val" if place < 10 else "test"
        rows.append(f"{split},{place},{number // 4},,{7 * number},{number:04d}.png")
    return {
        **files,
        "iwildcam_v2.0/metadata.csv": text(*rows),
        "iwildcam_v2.0/categories.csv": text("category_id,y,name"),
    }


def midog() -> Files:
    images = [
        {
            "id": i,
            "file_name": f"{i:03d}.tiff",
            "width": 200,
            "height": 150,
            "tumor_type": ("lymphoma", "melanoma")[i % 2],
        }
        for i in range(4)
    ]
    boxes = [
        {"image_id": i, "category_id": 1 + k, "bbox": [90 * k, 40, 90 * k + 50, 90]} for i in range(4) for k in range(2)
    ]
    buffer = io.BytesIO()
    Image.fromarray(np.tile(np.arange(200, dtype=np.uint8), (150, 1))).convert("RGB").save(buffer, "TIFF")
    files = {f"MIDOG++/{image['file_name']}": buffer.getvalue() for image in images}
    return {**files, "MIDOG++/MIDOG++.json": json.dumps({"images": images, "annotations": boxes}).encode()}


def gdrbench() -> Files:
    domains = ("APTOS", "DEEPDR", "FGADR", "IDRID", "MESSIDOR", "RLDR")
    images = tree(*(f"GDRBench/images/{d}/{c}" for d in domains for c in ("nodr", "pdr")))
    lists = {f"GDRBench/splits/{d}_{s}.txt": text(f"{d}/nodr/{n}.png 0", f"{d}/pdr/{n}.png 4")
             for d in domains for s, n in (("train", "a"), ("crossval", "b"))}  # fmt: skip
    masks = {f"GDRBench/masks/{d}/nodr/a.png": png(1) for d in domains}
    return images | lists | masks


def fed_isic() -> Files:
    rows, files = [",image,target,center,fold,fold2"], {}
    for center in range(6):
        for number in range(4):
            name = f"ISIC_{10 * center + number:07d}"
            fold = "test" if number == 3 else "train"
            rows.append(f"{len(files)},{name},{number % 2},{center},{fold},{fold}_{center}")
            folder = "ISIC_2019_Training_Input_preprocessed" if center else "ISIC_2019_Training_Input"
            files[f"fed_isic2019/{folder}/{name}.jpg"] = png(11 * len(files))
    return {**files, "fed_isic2019/train_test_split": text(*rows)}


def femnist() -> Files:
    def pixels(seed: int) -> list[float]:
        return [((seed + p) % 10) / 9 for p in range(784)]

    writers = {
        f"f{w:04d}_12": {"x": [pixels(w + i) for i in range(3)], "y": [w % 62, 11, 61]} for w in range(4)
    }  # fmt: skip
    content = {"users": list(writers), "num_samples": [3] * len(writers), "user_data": writers}
    return {f"femnist/data/{split}/all_data_0.json": json.dumps(content).encode() for split in ("train", "test")}


def own_folder() -> Files:
    return tree("mine/summer/cat", "mine/summer/dog", "mine/winter/cat", "mine/winter/dog")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One way in which a dataset is handed out, and what is to be read from its small tree.

    `classes` counts those that occur; `splits` are its official ones."""

    dataset: str
    files: Callable[[], Files]
    images: int
    domains: int
    classes: int
    splits: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.dataset}-{self.files.__name__}"


LAYOUTS = (
    Layout(dataset="pacs", files=dassl_pacs, images=8, domains=2, classes=2, splits=("crossval", "train")),
    Layout(dataset="vlcs", files=domainbed_vlcs, images=16, domains=4, classes=2),
    Layout(dataset="vlcs", files=dassl_vlcs, images=48, domains=4, classes=2, splits=("crossval", "test", "train")),
    Layout(dataset="office-home", files=office_home, images=16, domains=4, classes=2),
    Layout(dataset="office-home", files=dassl_office_home, images=32, domains=4, classes=2, splits=("train", "val")),
    Layout(dataset="digits-dg", files=digits, images=32, domains=4, classes=2, splits=("train", "val")),
    Layout(dataset="domainnet", files=domainnet, images=24, domains=6, classes=2, splits=("train",)),
    Layout(dataset="minidomainnet", files=minidomainnet, images=16, domains=4, classes=2, splits=("test", "train")),
    Layout(dataset="office-caltech-10", files=office_caltech, images=16, domains=4, classes=2),
    Layout(
        dataset="camelyon17", files=camelyon, images=20, domains=5, classes=2,
        splits=("id_val", "test", "train", "val"),
    ),
    Layout(dataset="iwildcam", files=iwildcam, images=24, domains=12, classes=24, splits=("id_test", "test", "train", "val")),
    Layout(dataset="midog", files=midog, images=8, domains=2, classes=2),
    Layout(dataset="gdrbench", files=gdrbench, images=24, domains=6, classes=2, splits=("crossval", "train")),
    Layout(dataset="fed-isic2019", files=fed_isic, images=24, domains=6, classes=2, splits=("test", "train")),
    Layout(dataset="femnist", files=femnist, images=24, domains=4, classes=6, splits=("train", "test")),
    Layout(dataset="folder", files=own_folder, images=8, domains=2, classes=2),
)  # fmt: skip


def write(root: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root
