"""``medfl prep``: a data set as downloaded in, a pooled data set out. One command for each data set."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from medfl.errors import SettingsError

if TYPE_CHECKING:
    from medfl.data.datalists import Datalist

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)

Out = Annotated[Path, typer.Option(help="The folder to write.")]
DeidentifyCheck = Annotated[str, typer.Option(help="DICOM that may tell who the patient is: strip, or refuse it.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a data set that is there.")]


@app.callback()
def prep() -> None:
    """Turn a data set as downloaded, or your own images, into one array of images and a data list."""


@app.command()
def medmnist(
    source: Annotated[Path, typer.Option(help="The folder that holds <flag>.npz, or the file.")],
    flag: Annotated[str, typer.Option(help="Name of the data set: bloodmnist, organmnist3d, bloodmnist_64, ...")],
    out: Out,
    finding: Annotated[str | None, typer.Option(help="ChestMNIST: the finding to classify, absent or present.")] = None,
    download: Annotated[bool, typer.Option("--download", help="Download the file if it is not there.")] = False,
    url: Annotated[str | None, typer.Option(help="A mirror: the address below which <flag>.npz lies.")] = None,
    force: Force = False,
) -> None:
    """MedMNIST, in 2-D and 3-D and all sizes. Nothing is downloaded without --download."""
    from medfl.data.medmnist import prepare
    from medfl.data.medmnist_releases import URL

    _check_mirror(url, download)
    datalist = prepare(source, flag, out, finding=finding, fetch=download, url=url or URL, force=force, say=_to_stderr)
    _summarise(out, datalist)


@app.command()
def derm7pt(
    source: Annotated[Path, typer.Option(help="The folder release_v0, as unpacked, or the one that holds it.")],
    out: Out,
    size: Annotated[int, typer.Option(min=1, help="Height and width of the images in the array.")] = 224,
    view: Annotated[str, typer.Option(help="derm (dermoscopy) or clinic (photograph).")] = "derm",
    split: Annotated[
        str, typer.Option(help="official, or none: all cases in training, for folds at each site as FedSKD has them.")
    ] = "official",
    skip_unreadable: Annotated[
        bool, typer.Option("--skip-unreadable", help="Leave out images that can't be read; quarantine.csv lists them.")
    ] = False,
    force: Force = False,
) -> None:
    """Derm7pt: skin lesions in five groups. Nothing is downloaded.

    Sex and location are kept, the aspect ratio is not. Nine cases without a clinical image are not in the view clinic.
    """
    from medfl.data.derm7pt import prepare

    datalist = prepare(
        source, out, size=size, view=view, split=split, skip_unreadable=skip_unreadable, force=force, say=_to_stderr
    )
    _summarise(out, datalist)


@app.command("cbis_ddsm")
def cbis_ddsm(
    source: Annotated[Path, typer.Option(help="The folder of the images, in any layout of the release.")],
    out: Out,
    tables: Annotated[
        Path | None, typer.Option(help="The folder of the four case descriptions (CSV), if they are not in --source.")
    ] = None,
    size: Annotated[str, typer.Option(help="Of the images in the array: 224, or 448x224 (HxW).")] = "224",
    view: Annotated[str, typer.Option(help="full: whole mammograms; crop: lesions cut out of them.")] = "full",
    abnormality: Annotated[str, typer.Option(help="both, mass or calc.")] = "both",
    three_classes: Annotated[
        bool, typer.Option("--three-classes", help="Keep benign without callback as a class; it is benign otherwise.")
    ] = False,
    crop_breast: Annotated[
        bool, typer.Option("--crop-breast", help="Cut the breast out of whole mammograms (needs medfl[mammography]).")
    ] = False,
    align: Annotated[
        bool, typer.Option("--align", help="Mirror right breasts: the chest wall is on the left.")
    ] = False,
    voi: Annotated[bool, typer.Option("--voi", help="Apply the window for display that a DICOM file holds.")] = False,
    deidentify_check: DeidentifyCheck = "strip",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; by default one for each core.")] = None,
    force: Force = False,
) -> None:
    """CBIS-DDSM: mammograms with benign or malignant lesions. Nothing is downloaded.

    Official split, without the training images of 31 patients who are tested on, too. What is missing or can't be read
    is left out and listed in quarantine.csv. If interrupted, the same command goes on where it stopped.
    """
    from medfl.data.cbis_ddsm import prepare
    from medfl.data.cbis_pixels import Options

    datalist = prepare(
        source,
        out,
        tables=tables,
        view=view,
        abnormality=abnormality,
        three_classes=three_classes,
        options=Options(_height_and_width(size), crop_breast, align, voi, deidentify_check),
        workers=workers,
        force=force,
        say=_to_stderr,
    )
    _summarise(out, datalist)


@app.command()
def mias(
    source: Annotated[Path, typer.Option(help="The folder all-mias, as unpacked, or the one that holds it.")],
    out: Out,
    size: Annotated[str, typer.Option(help="Of the images in the array: 224, or 448x224 (HxW).")] = "224",
    view: Annotated[str, typer.Option(help="full: whole films; crop: abnormalities cut out of them.")] = "full",
    labels: Annotated[
        str | None,
        typer.Option(
            help="three-class, benign-malignant or malignant-rest; by default the first, the second for crop."
        ),
    ] = None,
    test_share: Annotated[
        float, typer.Option(help="Share of the patients in the test set; 0 leaves it to medfl partition.")
    ] = 0.15,
    seed: Annotated[int, typer.Option(help="Decides which patients these are.")] = 0,
    crop_breast: Annotated[bool, typer.Option("--crop-breast", help="Cut the breast out of whole films.")] = False,
    align: Annotated[
        bool, typer.Option("--align", help="Mirror right breasts: the chest wall is on the left.")
    ] = False,
    require_complete: Annotated[
        bool, typer.Option("--require-complete", help="Stop if any film is missing or can't be read.")
    ] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; by default one for each core.")] = None,
    force: Force = False,
) -> None:
    """mini-MIAS: films of the breast, normal, benign or malignant. Nothing is downloaded.

    The two films of a patient stay together. A film that is missing or can't be read is left out and listed in
    quarantine.csv.
    """
    from medfl.data.mias import prepare

    datalist = prepare(
        source,
        out,
        size=_height_and_width(size),
        view=view,
        labels=labels,
        test_share=test_share,
        seed=seed,
        crop_breast=crop_breast,
        align=align,
        require_complete=require_complete,
        workers=workers,
        force=force,
        say=_to_stderr,
    )
    _summarise(out, datalist)


@app.command()
def abide(
    source: Annotated[Path, typer.Option(help="The folder with PCP's Outputs, nilearn's ABIDE_pcp, or all files.")],
    out: Out,
    derivatives: Annotated[
        str, typer.Option(help="The channels, separated by commas.")
    ] = "reho,degree_weighted,lfcd,vmhc",
    size: Annotated[int, typer.Option(help="Voxels along each edge of an image.")] = 48,
    sites: Annotated[
        str, typer.Option(help="fedasd for its four regions, or a column of the phenotypic file, such as SITE_ID.")
    ] = "fedasd",
    pipeline: Annotated[str, typer.Option(help="ccs, cpac, dparsf or niak.")] = "cpac",
    strategy: Annotated[str, typer.Option(help="filt_global, filt_noglobal, nofilt_...")] = "filt_noglobal",
    atlas: Annotated[Path | None, typer.Option(help="Labels in MNI152 space (NIfTI), to put on the same grid.")] = None,
    phenotypes: Annotated[Path | None, typer.Option(help="The phenotypic file, if it is not in --source.")] = None,
    require_complete: Annotated[
        bool, typer.Option("--require-complete", help="Stop if any map is missing or can't be read.")
    ] = False,
    download: Annotated[bool, typer.Option("--download", help="Download what is not in --source.")] = False,
    url: Annotated[str | None, typer.Option(help="A mirror: the address below which Outputs lies.")] = None,
    force: Force = False,
) -> None:
    """ABIDE I: maps of functional MRI with autism or without, as the Preprocessed Connectomes Project (PCP) has them.

    871 subjects passed its raters. Who lacks a map is left out and listed in quarantine.csv.
    """
    from medfl.data.abide import prepare
    from medfl.data.abide_download import URL
    from medfl.data.abide_maps import Maps

    _check_mirror(url, download)
    names = tuple(name.strip() for name in derivatives.split(",") if name.strip())
    datalist = prepare(
        source,
        out,
        maps=Maps(names, pipeline, strategy),
        size=size,
        sites=sites,
        phenotypes=phenotypes,
        atlas=atlas,
        require_complete=require_complete,
        fetch=download,
        url=url or URL,
        force=force,
        say=_to_stderr,
    )
    _summarise(out, datalist)


@app.command()
def folder(
    images: Annotated[Path, typer.Argument(help="The folder of the image files: PNG, JPEG, TIFF, DICOM, NIfTI, ...")],
    table: Annotated[Path, typer.Option(help="CSV or TSV with a row for each image.")],
    image_column: Annotated[str, typer.Option(help="Column with the path of the file below IMAGES.")],
    label_column: Annotated[str, typer.Option(help="Column with the class.")],
    size: Annotated[str, typer.Option(help="Of the images in the array: 224, 224x160 (HxW) or 64x64x32 (DxHxW).")],
    out: Out,
    group_column: Annotated[str | None, typer.Option(help="Column with the patient; it is not kept.")] = None,
    site_column: Annotated[str | None, typer.Option(help="Column with the site; kept as 'site'.")] = None,
    split_column: Annotated[str | None, typer.Option(help="Column with train, val or test.")] = None,
    keep_column: Annotated[list[str] | None, typer.Option(help="Another column to keep; may be repeated.")] = None,
    name: Annotated[str | None, typer.Option(help="Of the data set; by default that of --out.")] = None,
    licence: Annotated[str, typer.Option(help="Terms of use, as the data list shall state them.")] = "not stated",
    channels: Annotated[int | None, typer.Option(help="1 or 3; by default 3 if an image has colour.")] = None,
    deidentify_check: DeidentifyCheck = "strip",
    skip_unreadable: Annotated[
        bool, typer.Option("--skip-unreadable", help="Leave out images that can't be read; quarantine.csv lists them.")
    ] = False,
    force: Force = False,
) -> None:
    """Your own image files with a table of labels. No file name and no patient's identifier is kept.

    8-bit images stay as they are but for their size; DICOM, NIfTI and deeper ones are scaled to [0, 1], each by its own
    range. The aspect ratio is not kept.
    """
    from medfl.data.own_images import prepare
    from medfl.data.own_labels import Columns

    columns = Columns(image_column, label_column, group_column, site_column, split_column, tuple(keep_column or ()))
    datalist = prepare(
        images,
        table,
        columns,
        _edges(size),
        out,
        name=name,
        licence=licence,
        channels=channels,
        skip_unreadable=skip_unreadable,
        deidentify_check=deidentify_check,
        force=force,
        say=_to_stderr,
    )
    _summarise(out, datalist)


def _check_mirror(url: str | None, download: bool) -> None:
    if url and not download:
        raise SettingsError("--url says where to download from: give --download as well, or leave it out.")


def _to_stderr(line: str) -> None:
    typer.echo(line, err=True)


def _edges(text: str) -> tuple[int, ...]:
    from medfl.errors import SettingsError

    if not re.fullmatch(r"\d+([x, ]\d+){0,2}", text):
        raise SettingsError(f"expected a size like 224, 224x160 or 64x64x32, got '{text}'")
    return tuple(int(edge) for edge in re.split("[x, ]", text))


def _height_and_width(text: str) -> tuple[int, int]:
    edges = _edges(text)
    if len(edges) > 2:
        raise SettingsError(f"expected one or two edges for images, as in 224 or 448x224, got '{text}'")
    return edges[0], edges[-1]


def _summarise(out: Path, datalist: Datalist) -> None:
    counts = datalist.counts()
    sizes = ", ".join(f"{len(records)} {split}" for split, records in datalist.splits.items())
    typer.echo(f"{out}: {sizes} images of {datalist.num_classes} classes")
    for label, class_name in datalist.labels.items():
        typer.echo(f"  {label} {class_name}: {sum(split[label] for split in counts.values())}")
