"""What can be seen of a site's images in what it sent?"""
